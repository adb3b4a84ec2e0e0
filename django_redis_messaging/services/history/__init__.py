"""History: counts, latencies and gauges of queues, tasks, timers, operations and servers, over two weeks."""
