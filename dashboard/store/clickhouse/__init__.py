"""The store on ClickHouse, for runs that outgrow one machine; docs/clickhouse.md says what it builds on."""
