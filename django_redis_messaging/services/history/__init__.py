"""History: counts, latencies and gauges of queues, tasks, timers and servers, over two weeks."""
