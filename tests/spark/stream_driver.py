"""A driver that tests kill: it reads a topic, changes every row, and writes two queues, until it is ended.

Started as a program, with one JSON object as its only word. It says when its query runs, and dies with
whoever started it.
"""

from __future__ import annotations

import json
import os
import sys

from antiphon.runtime.launcher import die_with_parent


def main() -> None:
    told = json.loads(sys.argv[1])
    die_with_parent(told["parent"])
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().master(told["master"]).appName("stream")
    for name, text in told["settings"].items():
        builder = builder.config(name, text)
    spark = builder.getOrCreate()
    orders = (
        spark.readStream.format("antiphon")
        .option("servers", told["servers"])
        .option("subscribe", told["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", told["rows_max"])
        .option("minPartitions", told["partitions"])
        .load()
    )
    even, odd = told["sinks"]
    query = (
        orders.selectExpr(
            "concat('done ', cast(body as string)) as body",
            f"if(cast(cast(body as string) as int) % 2 = 0, '{even}', '{odd}') as destination",
            "key",
        )
        .writeStream.format("antiphon")
        .option("servers", told["servers"])
        .option("checkpointLocation", told["checkpoint"])
        .start()
    )
    print(json.dumps({"query": str(query.id), "pid": os.getpid()}), flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
