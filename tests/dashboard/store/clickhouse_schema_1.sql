-- The tables of the first schema, as that release made them; statements end with a semicolon.
CREATE TABLE meta (
    name String,
    value Int64,
    version Int64
) ENGINE = ReplacingMergeTree(version) ORDER BY name;
CREATE TABLE streams (
    run String,
    writer String,
    stream String,
    next_seq Int64,
    stored Int64,
    gaps Int64,
    dropped Int64,
    written Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(next_seq) ORDER BY (run, writer, stream);
CREATE TABLE incarnations (
    run String,
    rank Int64,
    incarnation Int64,
    start String,
    state String,
    part String,
    known Int64,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(known) ORDER BY (run, rank, incarnation, part);
CREATE TABLE layouts (
    run String,
    rank Int64,
    incarnation Int64,
    number Int64,
    timeline Int64,
    data String,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(version) ORDER BY (run, rank, incarnation, number) SETTINGS index_granularity = 64;
CREATE TABLE timelines (
    timeline Int64,
    run String,
    rank Int64,
    digest String,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(version) ORDER BY (run, timeline);
CREATE TABLE series (
    run String,
    series Int64,
    timeline Int64,
    kind String,
    name String,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(version) ORDER BY (run, timeline, series);
CREATE TABLE gaps (
    run String,
    writer String,
    source String,
    first_seq Int64,
    end_seq Int64,
    reason String,
    first_step Int64,
    last_step Int64,
    known Int64,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(known) ORDER BY (run, writer, source, first_seq);
CREATE TABLE gone_runs (
    run String,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(version) ORDER BY run;
CREATE TABLE events (
    run String,
    id String,
    writer String,
    seq Int64,
    rank Int64,
    incarnation Int64,
    step Int64,
    severity String,
    data String,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(seq) ORDER BY (run, id, writer) SETTINGS index_granularity = 64;
CREATE TABLE documents (
    run String,
    rank Int64,
    incarnation Int64,
    kind String,
    key String,
    step Int64,
    time Float64,
    data String,
    seq Int64,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(seq) ORDER BY (run, kind, rank, incarnation, key) SETTINGS index_granularity = 64;
CREATE TABLE host_samples (
    run String,
    rank Int64,
    incarnation Int64,
    time Float64,
    data String,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(version) ORDER BY (run, rank, incarnation, time);
CREATE TABLE marks (
    run String,
    note String,
    starred UInt8,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(version) ORDER BY run;
CREATE TABLE notes (
    run String,
    id String,
    step Int64,
    text String,
    time Float64,
    gone UInt8,
    version Int64,
    at DateTime DEFAULT now()
) ENGINE = ReplacingMergeTree(version) ORDER BY (run, id);
CREATE TABLE frames (
    run Int64,
    timeline Int64,
    step Int64,
    incarnation Int64,
    seq Int64
) ENGINE = ReplacingMergeTree() PARTITION BY run ORDER BY (timeline, step, incarnation, seq);
CREATE TABLE progress (
    run Int64,
    timeline Int64,
    first_step Int64,
    max_step Int64
) ENGINE = ReplacingMergeTree(max_step) PARTITION BY run ORDER BY timeline;
CREATE TABLE floors (
    run Int64,
    timeline Int64,
    raw_floor Int64
) ENGINE = ReplacingMergeTree(raw_floor) PARTITION BY run ORDER BY timeline;
CREATE TABLE kept (
    run Int64,
    timeline Int64,
    first_step Int64,
    end_step Int64,
    kind Int64,
    version Int64
) ENGINE = ReplacingMergeTree(version) PARTITION BY run ORDER BY (timeline, first_step, end_step);
CREATE TABLE scalar_raw (
    run Int64,
    timeline Int64,
    series Int64,
    step Int64,
    incarnation Int64,
    seq Int64,
    time Float64,
    value Float64
) ENGINE = ReplacingMergeTree(seq) PARTITION BY (run, intDiv(step, 8192)) ORDER BY (timeline, step, series, incarnation);
CREATE TABLE scalar_pooled (
    run Int64,
    timeline Int64,
    level Int64,
    series Int64,
    step Int64,
    version Int64,
    first Int64,
    time Float64,
    least Float64,
    mean Float64,
    most Float64,
    finite Int64,
    nans Int64,
    infs Int64,
    pooled Int64
) ENGINE = ReplacingMergeTree(version) PARTITION BY run ORDER BY (timeline, level, series, step);
CREATE TABLE layer_raw (
    run Int64,
    timeline Int64,
    series Int64,
    step Int64,
    incarnation Int64,
    seq Int64,
    data String,
    flags String
) ENGINE = ReplacingMergeTree(seq) PARTITION BY (run, intDiv(step, 8192)) ORDER BY (timeline, series, step, incarnation) SETTINGS index_granularity = 64;
CREATE TABLE parameter_raw (
    run Int64,
    timeline Int64,
    series Int64,
    step Int64,
    incarnation Int64,
    seq Int64,
    data String,
    flags String
) ENGINE = ReplacingMergeTree(seq) PARTITION BY (run, intDiv(step, 8192)) ORDER BY (timeline, series, step, incarnation) SETTINGS index_granularity = 64;
CREATE TABLE module_raw (
    run Int64,
    timeline Int64,
    series Int64,
    step Int64,
    incarnation Int64,
    seq Int64,
    data String,
    flags String
) ENGINE = ReplacingMergeTree(seq) PARTITION BY (run, intDiv(step, 8192)) ORDER BY (timeline, series, step, incarnation) SETTINGS index_granularity = 64;
CREATE TABLE scalar_kept (
    run Int64,
    timeline Int64,
    series Int64,
    step Int64,
    incarnation Int64,
    seq Int64,
    time Float64,
    value Float64
) ENGINE = ReplacingMergeTree(seq) PARTITION BY run ORDER BY (timeline, step, series, incarnation);
CREATE TABLE layer_kept (
    run Int64,
    timeline Int64,
    series Int64,
    step Int64,
    incarnation Int64,
    seq Int64,
    data String,
    flags String
) ENGINE = ReplacingMergeTree(seq) PARTITION BY run ORDER BY (timeline, series, step, incarnation) SETTINGS index_granularity = 64;
CREATE TABLE parameter_kept (
    run Int64,
    timeline Int64,
    series Int64,
    step Int64,
    incarnation Int64,
    seq Int64,
    data String,
    flags String
) ENGINE = ReplacingMergeTree(seq) PARTITION BY run ORDER BY (timeline, series, step, incarnation) SETTINGS index_granularity = 64;
CREATE TABLE module_kept (
    run Int64,
    timeline Int64,
    series Int64,
    step Int64,
    incarnation Int64,
    seq Int64,
    data String,
    flags String
) ENGINE = ReplacingMergeTree(seq) PARTITION BY run ORDER BY (timeline, series, step, incarnation) SETTINGS index_granularity = 64;
CREATE TABLE layer_pooled (
    run Int64,
    timeline Int64,
    level Int64,
    series Int64,
    step Int64,
    version Int64,
    data String,
    flags String
) ENGINE = ReplacingMergeTree(version) PARTITION BY run ORDER BY (timeline, series, level, step) SETTINGS index_granularity = 64;
CREATE TABLE parameter_pooled (
    run Int64,
    timeline Int64,
    level Int64,
    series Int64,
    step Int64,
    version Int64,
    data String,
    flags String
) ENGINE = ReplacingMergeTree(version) PARTITION BY run ORDER BY (timeline, series, level, step) SETTINGS index_granularity = 64;
CREATE TABLE module_pooled (
    run Int64,
    timeline Int64,
    level Int64,
    series Int64,
    step Int64,
    version Int64,
    data String,
    flags String
) ENGINE = ReplacingMergeTree(version) PARTITION BY run ORDER BY (timeline, series, level, step) SETTINGS index_granularity = 64;
CREATE TABLE histograms (
    run Int64,
    timeline Int64,
    series Int64,
    step Int64,
    incarnation Int64,
    seq Int64,
    data String
) ENGINE = ReplacingMergeTree() PARTITION BY run ORDER BY (series, incarnation, seq) SETTINGS index_granularity = 64;
INSERT INTO meta (name, value, version) SELECT 'schema', 1, 1;
