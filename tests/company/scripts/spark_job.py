"""Compute with two executors until ``/tmp/finish`` exists in the driver; print what it observes as JSON.

Runs in the driver, which spark-submit starts.
"""

# mypy: ignore-errors

import json
import os
import time
from operator import add
from pathlib import Path

from pyspark import SparkContext


def executor(_numbers):
    time.sleep(0.5)  # longer than it takes to start the other executor's task
    return [os.environ["SPARK_EXECUTOR_POD_NAME"]]


def report(**seen):
    print(json.dumps(seen), flush=True)


with SparkContext() as spark:
    numbers = spark.parallelize(range(1000), 4)
    factor = spark.broadcast(3)
    sums = numbers.map(lambda number: (number % 4, number * factor.value)).reduceByKey(add, 4).collect()
    report(sums=sorted(sums))
    while not Path("/tmp/finish").exists():
        report(executors=sorted(spark.parallelize(range(2), 2).mapPartitions(executor).collect()))
        time.sleep(1)
