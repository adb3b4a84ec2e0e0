"""Task queues that `benchmarks.workers` compares, one module each.

A module is imported by the process that measures, and by the worker. It has:

    push(kind, numbers)    enqueue the task of this kind for each number, one after the other
    command(processes)     the arguments of each Python process that has to be started for a worker

`work.py` has the tasks. What a queue can't do raises NotImplementedError.
"""

#: tasks that can be noted
SLOTS = 500_000
#: bytes of the file of notes: for each task a time, the process, and how often it ran
SIZE = SLOTS * (8 + 4 + 4)
#: environment of a worker: the server, the file, whether to store results, and the form of the worker
URL, FILE, RESULTS, FORM = "WORKERS_URL", "WORKERS_FILE", "WORKERS_RESULTS", "WORKERS_FORM"
#: environment of a worker of this app: the module of its tasks, if it is not `ours.py`
MODULE = "WORKERS_MODULE"
