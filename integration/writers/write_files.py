"""Write Parquet files with one writer, whose Python runs this: jobs are lines of JSON on standard input.

Each job names rows (an Arrow stream), an output and what the writer is asked for. Prints a line of JSON for each.
"""

import json
import sys
import traceback


def _rows(job):
    import pyarrow as pa

    with pa.OSFile(job["rows"], "rb") as source:
        return pa.ipc.open_stream(source).read_all()


def _with_ids(schema, ids, how):
    """Field ids at every level, or of top-level columns only."""
    import pyarrow as pa

    def field(each, path):
        kind, deeper = each.type, how == "everywhere"
        if deeper and pa.types.is_struct(kind):
            kind = pa.struct([field(f, path + "." + f.name) for f in kind])
        elif deeper and pa.types.is_map(kind):
            kind = pa.map_(field(kind.key_field, path + ".key"), field(kind.item_field, path + ".value"))
        elif deeper and pa.types.is_fixed_size_list(kind):
            kind = pa.list_(field(kind.value_field, path + ".element"), kind.list_size)
        elif deeper and pa.types.is_list(kind):
            kind = pa.list_(field(kind.value_field, path + ".element"))
        return pa.field(each.name, kind, each.nullable, {"PARQUET:field_id": str(ids[path])})

    return pa.schema([field(each, each.name) for each in schema])


def pyarrow(job):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, how, version = _rows(job), job["encoding"], int(pa.__version__.split(".")[0])
    if job["ids"] != "nowhere":
        rows = rows.cast(_with_ids(rows.schema, job["all_ids"], job["ids"]))
    options = {"compression": job["codec"], "data_page_version": job["pages"], "row_group_size": job["group_rows"]}
    options["use_dictionary"] = how in ("dictionary", "fallback")
    if how == "fallback":
        options.update(dictionary_pagesize_limit=256, write_batch_size=64)
    if job["small_pages"]:
        options.update(data_page_size=200, write_batch_size=20)
    if how == "delta":
        names = {"id": "DELTA_BINARY_PACKED"}
        if version >= 14:
            names.update(many="DELTA_BYTE_ARRAY", raw="DELTA_LENGTH_BYTE_ARRAY")
        options["column_encoding"] = {k: v for k, v in names.items() if k in rows.column_names}
    if how == "split":
        options["column_encoding"] = {k: "BYTE_STREAM_SPLIT" for k in ("number",) if k in rows.column_names}
    if version >= 19:
        options["store_decimal_as_integer"] = True
    if version >= 12:
        options["store_schema"] = job["store_schema"]
    pq.write_table(rows, job["out"], **options)


def polars(job):
    import polars as pl

    codec = {"none": "uncompressed"}.get(job["codec"], job["codec"])
    frame = pl.from_arrow(_rows(job))
    frame.write_parquet(job["out"], compression=codec, row_group_size=job["group_rows"], data_page_size=4096)


def duckdb(job):
    import duckdb

    rows = _rows(job)
    codec = {"none": "uncompressed", "lz4": "lz4_raw"}.get(job["codec"], job["codec"])
    version = "V2" if job["pages"] == "2.0" else "V1"
    options = [f"FORMAT parquet, CODEC '{codec}', PARQUET_VERSION {version}"]
    options.append(f"ROW_GROUP_SIZE {max(2048, job['group_rows'])}")
    if job["encoding"] == "plain":
        options.append("DICTIONARY_SIZE_LIMIT 1")
    if job["ids"] == "everywhere":
        options.append("FIELD_IDS " + _duckdb_ids(job["all_ids"], rows.column_names))
    duckdb.sql(f"COPY rows TO '{job['out']}' ({', '.join(options)})")


def _duckdb_ids(ids, columns):
    def of(path):
        below = [p for p in ids if p.startswith(path + ".") and "." not in p[len(path) + 1 :]]
        inner = "".join(f", '{p[len(path) + 1 :]}': {of(p)}" for p in below)
        return f"{{__duckdb_field_id: {ids[path]}{inner}}}" if below else str(ids[path])

    return "{" + ", ".join(f"'{name}': {of(name)}" for name in columns) + "}"


def arro3(job):
    import arro3.io

    rows = _rows(job)
    if job["ids"] != "nowhere":
        rows = rows.cast(_with_ids(rows.schema, job["all_ids"], job["ids"]))
    codec = {"none": "uncompressed", "lz4": "lz4_raw", "gzip": "gzip(6)", "zstd": "zstd(3)", "brotli": "brotli(3)"}
    arro3.io.write_parquet(
        rows, job["out"], compression=codec.get(job["codec"], job["codec"]),
        writer_version="parquet_2_0" if job["pages"] == "2.0" else "parquet_1_0",
        dictionary_enabled=job["encoding"] in ("dictionary", "fallback"),
        dictionary_page_size_limit=256 if job["encoding"] == "fallback" else None,
        max_row_group_size=job["group_rows"], write_batch_size=20 if job["small_pages"] else 64,
        data_page_size_limit=200 if job["small_pages"] else None, skip_arrow_metadata=not job["store_schema"],
    )  # fmt: skip


def fastparquet(job):
    import fastparquet

    codec = {"none": "UNCOMPRESSED"}.get(job["codec"], job["codec"].upper())
    offsets = list(range(0, job["count"], job["group_rows"]))
    fastparquet.write(job["out"], _rows(job).to_pandas(), compression=codec, row_group_offsets=offsets, times="int64")


def chdb(job):
    import chdb

    settings = {
        "output_format_parquet_compression_method": f"'{job['codec']}'",
        "output_format_parquet_row_group_size": job["group_rows"],
        "output_format_parquet_max_dictionary_size": {"plain": 0, "fallback": 256}.get(job["encoding"], 2**20),
        "schema_inference_make_columns_nullable": 1,
        "engine_file_truncate_on_insert": 1,
    }
    said = ", ".join(f"{key} = {value}" for key, value in settings.items())
    query = f"INSERT INTO FUNCTION file('{job['out']}', 'Parquet') SELECT * FROM file('{job['rows']}', 'ArrowStream')"
    chdb.query(query + " SETTINGS " + said)


def main():
    for line in sys.stdin:
        job = json.loads(line)
        try:
            globals()[job["library"]](job)
            print(json.dumps({"out": job["out"]}), flush=True)
        except Exception as error:
            last = traceback.format_exception_only(type(error), error)[-1].strip()
            print(json.dumps({"out": job["out"], "error": last[:300]}), flush=True)


if __name__ == "__main__":
    main()
