"""The files of a run's folder that the producer writes or reads: record, plan, ledgers, pardons."""
