import java.io.File;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.iceberg.*;
import org.apache.iceberg.data.*;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.data.parquet.GenericParquetReaders;
import org.apache.iceberg.deletes.*;
import org.apache.iceberg.encryption.EncryptedOutputFile;
import org.apache.iceberg.expressions.*;
import org.apache.iceberg.io.*;
import org.apache.iceberg.mapping.NameMappingParser;
import org.apache.iceberg.parquet.Parquet;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.org.apache.parquet.schema.MessageType;
import org.apache.iceberg.types.*;
import org.apache.iceberg.types.Comparators;
import org.apache.iceberg.util.*;

/**
 * What the machine asks of Iceberg's Java library, in one call each, lists as text joined by NEXT: a call from Python
 * costs as much as reading a small file. It is compiled by Janino, which Spark carries: no JDK is needed, and neither lambdas nor inferred types
 * are to be had.
 */
public class Probe {
  private static final String FIELD = "\u0001";
  private static final String NEXT = "\u0002";
  private static final Map known = new HashMap();
  private static final Map manifests = new HashMap();
  private static final Set verified = new HashSet();

  /** Forget what was read of files that are gone. */
  public static void forget() {
    known.clear();
    manifests.clear();
    verified.clear();
  }

  /** Each row as `file FIELD text`; of a snapshot with its own schema, or of the table as it is (snapshot < 0). */
  public static String rows(Table table, long snapshotId) throws Exception {
    Schema schema = snapshotId < 0 ? table.schema() : schemaOf(table, snapshotId);
    List found = new ArrayList();
    for (Object o : read(table, snapshotId, schema)) {
      Record row = (Record) o;
      found.add(row.getField("_file") + FIELD + text(schema.asStruct(), row));
    }
    return String.join(NEXT, found);
  }

  /** Each row as `row id FIELD number of its last change FIELD text`, of a table of format v3 as it is. */
  public static String lineage(Table table) throws Exception {
    List columns = new ArrayList(table.schema().columns());
    columns.add(MetadataColumns.ROW_ID);
    columns.add(MetadataColumns.LAST_UPDATED_SEQUENCE_NUMBER);
    List found = new ArrayList();
    CloseableIterable rows = IcebergGenerics.read(table).project(new Schema(columns)).build();
    for (Object o : rows) {
      Record row = (Record) o;
      String ids = row.getField("_row_id") + FIELD + row.getField("_last_updated_sequence_number");
      found.add(ids + FIELD + text(table.schema().asStruct(), row));
    }
    rows.close();
    return String.join(NEXT, found);
  }

  /** The same of a snapshot, by the columns that the table has now. */
  public static String rowsNow(Table table, long snapshotId) throws Exception {
    List found = new ArrayList();
    for (Object o : read(table, snapshotId, table.schema())) {
      Record row = (Record) o;
      found.add(row.getField("_file") + FIELD + text(table.schema().asStruct(), row));
    }
    return String.join(NEXT, found);
  }

  private static Schema schemaOf(Table table, long snapshotId) {
    Integer id = table.snapshot(snapshotId).schemaId();
    return id == null ? table.schema() : (Schema) table.schemas().get(id);
  }

  /** Forget rows, so that they are read anew; while they are known, `problems` watches the files they came from. */
  public static void forgetRows() {
    known.clear();
  }

  private static List read(Table table, long snapshotId, Schema schema) throws Exception {
    Snapshot snapshot = snapshotId < 0 ? table.currentSnapshot() : table.snapshot(snapshotId);
    if (snapshot == null) return new ArrayList();
    String key = snapshot.manifestListLocation() + " " + schema.asStruct() + " " + table.specs().size();
    List rows = (List) known.get(key);
    if (rows == null) {
      rows = readAll(table, snapshotId, schema);
      known.put(key, rows);
    }
    return rows;
  }

  private static List readAll(Table table, long snapshotId, Schema schema) throws Exception {
    List columns = new ArrayList(schema.columns());
    columns.add(MetadataColumns.FILE_PATH);
    IcebergGenerics.ScanBuilder scan = IcebergGenerics.read(table).project(new Schema(columns));
    if (snapshotId >= 0) scan = scan.useSnapshot(snapshotId);
    List rows = new ArrayList();
    CloseableIterable found = scan.build();
    try {
      for (Object row : found) rows.add(row);
    } finally {
      found.close();
    }
    return rows;
  }

  private static String text(Types.StructType type, StructLike row) {
    StringBuilder out = new StringBuilder();
    List fields = type.fields();
    for (int i = 0; i < fields.size(); i++) {
      Types.NestedField field = (Types.NestedField) fields.get(i);
      out.append(i == 0 ? "" : " | ").append(field.name()).append('=');
      out.append(text(field.type(), row.get(i, Object.class)));
    }
    return out.toString();
  }

  private static String text(Type type, Object value) {
    if (value == null) return "NULL";
    if (type.isStructType()) return "{" + text(type.asStructType(), (StructLike) value) + "}";
    if (type.isListType()) {
      List out = new ArrayList();
      for (Object element : (List) value) out.add(text(type.asListType().elementType(), element));
      return out.toString();
    }
    if (type.isMapType()) {
      Map out = new TreeMap();
      for (Object o : ((Map) value).entrySet()) {
        Map.Entry entry = (Map.Entry) o;
        String key = text(type.asMapType().keyType(), entry.getKey());
        out.put(key, text(type.asMapType().valueType(), entry.getValue()));
      }
      return out.toString();
    }
    // after a promotion Iceberg reads an old snapshot's floats as doubles where they are partition values
    if (type.typeId() == Type.TypeID.FLOAT) return String.valueOf(((Number) value).floatValue());
    if (value instanceof ByteBuffer) return hex((ByteBuffer) value);
    if (value instanceof BigDecimal) return ((BigDecimal) value).toPlainString();
    return value.toString();
  }

  private static String hex(ByteBuffer bytes) {
    StringBuilder out = new StringBuilder("x");
    for (int i = bytes.position(); i < bytes.limit(); i++) out.append(String.format("%02x", bytes.get(i) & 0xff));
    return out.toString();
  }

  /** Rows (a JSON array of objects, scalars as text) as one data file for each partition, in one commit. */
  public static void append(Table table, String rowsJson, String how, String branch) throws Exception {
    List files = write(table, parsed(table.schema(), rowsJson));
    SnapshotUpdate update;
    if (how.equals("replace-partitions")) {
      ReplacePartitions replace = table.newReplacePartitions();
      for (Object file : files) replace.addFile((DataFile) file);
      update = replace;
    } else {
      AppendFiles append = how.equals("fast") ? table.newFastAppend() : table.newAppend();
      for (Object file : files) append.appendFile((DataFile) file);
      if (how.equals("stage")) append.stageOnly();
      update = append;
    }
    if (branch != null) update.toBranch(branch);
    update.commit();
  }

  /** Rows as `append` takes them, each as text. */
  public static String told(Table table, String rowsJson) throws Exception {
    List found = new ArrayList();
    for (Object row : parsed(table.schema(), rowsJson)) found.add(text(table.schema().asStruct(), (StructLike) row));
    return String.join(NEXT, found);
  }

  /** Make the rows of a table those of another one. */
  public static void reset(Table table, Table source) throws Exception {
    List rows = new ArrayList();
    for (Object row : read(source, -1, source.schema())) rows.add(((Record) row).copy());
    OverwriteFiles overwrite = table.newOverwrite().overwriteByRowFilter(Expressions.alwaysTrue());
    for (Object file : write(table, rows)) overwrite.addFile((DataFile) file);
    overwrite.commit();
  }

  private static List parsed(Schema schema, String rowsJson) throws Exception {
    List rows = new ArrayList();
    JsonNode all = (JsonNode) JsonUtil.mapper().readTree(rowsJson);
    for (Object node : all) rows.add(value(schema.asStruct(), (JsonNode) node));
    return rows;
  }

  private static List write(Table table, List rows) throws Exception {
    Map writers = new LinkedHashMap();
    OutputFileFactory names = OutputFileFactory.builderFor(table, 1, 1).format(FileFormat.PARQUET).build();
    GenericAppenderFactory appenders = new GenericAppenderFactory(table.schema(), table.spec());
    appenders.setAll(table.properties());
    for (Object row : rows) {
      PartitionKey key = partitionOf(table, (Record) row);
      String name = partition(table.spec(), key);
      DataWriter writer = (DataWriter) writers.get(name);
      if (writer == null) {
        PartitionKey kept = key.copy();
        EncryptedOutputFile file = table.spec().isUnpartitioned()
            ? names.newOutputFile() : names.newOutputFile(table.spec(), kept);
        writer = appenders.newDataWriter(file, FileFormat.PARQUET, table.spec().isUnpartitioned() ? null : kept);
        writers.put(name, writer);
      }
      writer.write(row);
    }
    List files = new ArrayList();
    for (Object o : writers.values()) {
      DataWriter writer = (DataWriter) o;
      writer.close();
      files.add(writer.toDataFile());
    }
    return files;
  }

  /** Delete the rows that are equal in some columns, the values spread over some files in each partition. */
  public static void deleteEqual(Table table, String columns, String rowsJson, int files, String branch)
      throws Exception {
    Snapshot head = head(table, branch);
    if (head == null) throw new IllegalStateException("no rows to delete");
    Schema schema = table.schema().select(Arrays.asList(columns.split(NEXT)));
    RowDelta delta = table.newRowDelta();
    equalityDeletes(table, schema, columns.split(NEXT), parsed(schema, rowsJson), files, head, delta);
    if (branch != null) delta.toBranch(branch);
    delta.commit();
  }

  /**
   * Write rows in place of those that are equal in the key columns and delete others (`goneJson`), as Flink commits
   * them: equality deletes for older rows, position deletes for those of this commit that are followed by one of the
   * same key. Keys are deleted in the partitions of their own rows, as Flink does, or everywhere.
   */
  public static void upsert(
      Table table, String keys, String rowsJson, String goneJson, boolean isEverywhere, String branch)
      throws Exception {
    String[] columns = keys.split(NEXT);
    Schema schema = table.schema().select(Arrays.asList(columns));
    List rows = parsed(table.schema(), rowsJson);
    List changed = new ArrayList(rows);
    changed.addAll(parsed(table.schema(), goneJson));
    RowDelta delta = table.newRowDelta();
    Snapshot head = head(table, branch);
    List everywhere = new ArrayList();
    Map apart = new LinkedHashMap();
    for (Object o : changed) {
      PartitionKey partition = partitionOf(table, (Record) o);
      String name = partition(table.spec(), partition);
      if (!apart.containsKey(name)) apart.put(name, new Object[] {partition, new ArrayList()});
      Record key = key(schema, columns, (Record) o);
      ((List) ((Object[]) apart.get(name))[1]).add(key);
      everywhere.add(key);
    }
    if (isEverywhere && head != null) {
      equalityDeletes(table, schema, columns, everywhere, 1, head, delta);
    } else if (!isEverywhere) {
      for (Object o : apart.values()) {
        StructLike partition = (StructLike) ((Object[]) o)[0];
        List values = (List) ((Object[]) o)[1];
        equalityDeletes(table, table.spec(), partition, schema, columns, values, 1, delta);
      }
    }
    write(table, rows, schema, columns, delta);
    if (branch != null) delta.toBranch(branch);
    delta.commit();
  }

  private static Record key(Schema schema, String[] columns, Record row) {
    GenericRecord key = GenericRecord.create(schema);
    for (int i = 0; i < columns.length; i++) key.setField(columns[i], row.getField(columns[i]));
    return key;
  }

  /** Add data files, and position deletes for rows that are followed by one of the same key. */
  private static void write(Table table, List rows, Schema schema, String[] columns, RowDelta delta) throws Exception {
    Map last = new HashMap();
    for (Object row : rows) last.put(text(schema.asStruct(), key(schema, columns, (Record) row)), row);
    Map places = new LinkedHashMap();
    for (Object row : rows) {
      String name = partition(table.spec(), partitionOf(table, (Record) row));
      if (!places.containsKey(name)) places.put(name, new ArrayList());
      boolean stays = last.get(text(schema.asStruct(), key(schema, columns, (Record) row))) == row;
      ((List) places.get(name)).add(Boolean.valueOf(stays));
    }
    // one file for each partition, in the same order
    Iterator stay = places.values().iterator();
    for (Object o : write(table, rows)) {
      DataFile file = (DataFile) o;
      List stays = (List) stay.next();
      Set positions = new TreeSet();
      for (int i = 0; i < stays.size(); i++) {
        if (!((Boolean) stays.get(i)).booleanValue()) positions.add(Long.valueOf(i));
      }
      SortedMap deleted = new TreeMap();
      deleted.put(file.location(), positions);
      delta.addRows(file);
      if (positions.isEmpty()) continue;
      // one who knows the table, as Flink's writer does, bounds paths by whole ones
      GenericAppenderFactory appenders =
          new GenericAppenderFactory(table, table.schema(), table.spec(), table.properties(), null, null);
      delta.addDeletes(positionDeletes(table, file, deleted, appenders));
    }
  }

  private static Snapshot head(Table table, String branch) {
    return branch == null ? table.currentSnapshot() : table.snapshot(branch);
  }

  private static PartitionKey partitionOf(Table table, Record row) {
    PartitionKey key = new PartitionKey(table.spec(), table.schema());
    key.partition(new InternalRecordWrapper(table.schema().asStruct()).wrap(row));
    return key;
  }

  /** In each partition of each spec that has files: in which of them a row lies may differ between the two tables. */
  private static void equalityDeletes(
      Table table, Schema schema, String[] columns, List values, int files, Snapshot head, RowDelta delta)
      throws Exception {
    Map partitions = new LinkedHashMap();
    for (Object o : files(table, head)) {
      DataFile file = (DataFile) o;
      PartitionSpec spec = (PartitionSpec) table.specs().get(file.specId());
      partitions.put(file.specId() + " " + partition(spec, file.partition()), file);
    }
    for (Object o : partitions.values()) {
      DataFile file = (DataFile) o;
      PartitionSpec spec = (PartitionSpec) table.specs().get(file.specId());
      equalityDeletes(table, spec, file.partition(), schema, columns, values, files, delta);
    }
  }

  private static void equalityDeletes(
      Table table, PartitionSpec spec, StructLike partition, Schema schema, String[] columns, List values, int files,
      RowDelta delta) throws Exception {
    int[] ids = new int[columns.length];
    for (int i = 0; i < ids.length; i++) ids[i] = table.schema().findField(columns[i]).fieldId();
    OutputFileFactory names = OutputFileFactory.builderFor(table, 1, 1).format(FileFormat.PARQUET).build();
    StructLike key = spec.isUnpartitioned() ? null : partition;
    GenericAppenderFactory appenders = new GenericAppenderFactory(table.schema(), spec, ids, schema, null);
    for (int first = 0; first < Math.min(files, values.size()); first++) {
      EncryptedOutputFile output = key == null ? names.newOutputFile() : names.newOutputFile(spec, key);
      EqualityDeleteWriter writer = appenders.newEqDeleteWriter(output, FileFormat.PARQUET, key);
      for (int i = first; i < values.size(); i += files) writer.write(values.get(i));
      writer.close();
      delta.addDeletes(writer.toDeleteFile());
    }
  }

  private static List files(Table table, Snapshot snapshot) throws Exception {
    List found = new ArrayList();
    CloseableIterable tasks = ((TableScan) table.newScan()).useSnapshot(snapshot.snapshotId()).planFiles();
    try {
      for (Object task : tasks) found.add(((FileScanTask) task).file());
    } finally {
      tasks.close();
    }
    return found;
  }

  /** Delete rows with these ids by position delete files, one for each data file that has some or for each partition. */
  public static void deletePositions(Table table, String ids, boolean isByPartition, String branch) throws Exception {
    Set wanted = new HashSet(Arrays.asList(ids.split(NEXT)));
    // all columns: where an equality delete is by a field of a struct, Iceberg 1.11 loses all rows if the struct is not
    // among them (DeleteFilter.fileProjection finds top-level fields only)
    List columns = new ArrayList(table.schema().columns());
    columns.add(MetadataColumns.FILE_PATH);
    columns.add(MetadataColumns.ROW_POSITION);
    Map positions = new LinkedHashMap();
    Snapshot head = head(table, branch);
    if (head == null) throw new IllegalStateException("no rows to delete");
    CloseableIterable rows =
        IcebergGenerics.read(table).useSnapshot(head.snapshotId()).project(new Schema(columns)).build();
    for (Object o : rows) {
      Record row = (Record) o;
      if (!wanted.contains(String.valueOf(row.getField("id")))) continue;
      Object path = row.getField("_file");
      if (!positions.containsKey(path)) positions.put(path, new TreeSet());
      ((Set) positions.get(path)).add(row.getField("_pos"));
    }
    rows.close();
    if (positions.isEmpty()) throw new IllegalStateException("no rows to delete");
    if (hasVectors(table)) {
      deleteByVectors(table, head, positions, branch);
      return;
    }
    Map groups = new LinkedHashMap();
    Map some = new HashMap();
    for (Object o : files(table, head)) {
      DataFile file = (DataFile) o;
      if (!positions.containsKey(file.location())) continue;
      PartitionSpec spec = (PartitionSpec) table.specs().get(file.specId());
      String group = isByPartition ? file.specId() + " " + partition(spec, file.partition()) : file.location();
      if (!groups.containsKey(group)) groups.put(group, new TreeMap());
      ((Map) groups.get(group)).put(file.location(), positions.get(file.location()));
      some.put(group, file);
    }
    RowDelta delta = table.newRowDelta();
    for (Object group : groups.keySet()) {
      DataFile file = (DataFile) some.get(group);
      PartitionSpec spec = (PartitionSpec) table.specs().get(file.specId());
      GenericAppenderFactory appenders = new GenericAppenderFactory(table.schema(), spec);
      delta.addDeletes(positionDeletes(table, file, (SortedMap) groups.get(group), appenders));
    }
    if (branch != null) delta.toBranch(branch);
    delta.commit();
  }

  /** Format v3 has deletion vectors in place of position delete files. */
  private static boolean hasVectors(Table table) {
    return ((HasTableOperations) table).operations().current().formatVersion() > 2;
  }

  /** Delete positions of files; the new vector of a file takes up the deletes that it has. */
  private static void deleteByVectors(Table table, Snapshot head, Map positions, String branch) throws Exception {
    final Table of = table;
    final Map deletes = new HashMap();
    Map files = new LinkedHashMap();
    CloseableIterable tasks = ((TableScan) table.newScan()).useSnapshot(head.snapshotId()).planFiles();
    try {
      for (Object o : tasks) {
        FileScanTask task = (FileScanTask) o;
        files.put(task.file().location(), task.file());
        List known = new ArrayList();
        for (Object delete : task.deletes()) {
          if (((DeleteFile) delete).content() == FileContent.POSITION_DELETES) known.add(delete);
        }
        deletes.put(task.file().location(), known);
      }
    } finally {
      tasks.close();
    }
    final BaseDeleteLoader loader = new BaseDeleteLoader(new java.util.function.Function() {
      public Object apply(Object delete) {
        return of.io().newInputFile((DeleteFile) delete);
      }
    });
    OutputFileFactory names = OutputFileFactory.builderFor(table, 1, 1).format(FileFormat.PUFFIN).build();
    BaseDVFileWriter writer = new BaseDVFileWriter(names, new java.util.function.Function() {
      public Object apply(Object path) {
        List known = (List) deletes.get(path);
        return known == null || known.isEmpty() ? null : loader.loadPositionDeletes(known, (String) path);
      }
    });
    // otherwise Iceberg takes each earlier vector of a file for a concurrent one
    RowDelta delta = table.newRowDelta().validateFromSnapshot(head.snapshotId());
    for (Object path : positions.keySet()) {
      DataFile file = (DataFile) files.get(path);
      PartitionSpec spec = (PartitionSpec) table.specs().get(file.specId());
      for (Object position : (Set) positions.get(path)) {
        writer.delete((String) path, ((Long) position).longValue(), spec, file.partition());
      }
    }
    writer.close();
    for (Object delete : writer.result().deleteFiles()) delta.addDeletes((DeleteFile) delete);
    for (Object delete : writer.result().rewrittenDeleteFiles()) delta.removeDeletes((DeleteFile) delete);
    if (branch != null) delta.toBranch(branch);
    delta.commit();
  }

  /** Positions of rows by path, in the partition of a file. */
  private static DeleteFile positionDeletes(
      Table table, DataFile file, SortedMap positions, GenericAppenderFactory appenders) throws Exception {
    PartitionSpec spec = (PartitionSpec) table.specs().get(file.specId());
    if (hasVectors(table)) {
      OutputFileFactory vectors = OutputFileFactory.builderFor(table, 1, 1).format(FileFormat.PUFFIN).build();
      BaseDVFileWriter writer = new BaseDVFileWriter(vectors, new java.util.function.Function() {
        public Object apply(Object path) {
          return null;
        }
      });
      for (Object position : (Set) positions.get(file.location())) {
        writer.delete(file.location(), ((Long) position).longValue(), spec, file.partition());
      }
      writer.close();
      return (DeleteFile) writer.result().deleteFiles().get(0);
    }
    StructLike partition = spec.isUnpartitioned() ? null : file.partition();
    OutputFileFactory names = OutputFileFactory.builderFor(table, 1, 1).format(FileFormat.PARQUET).build();
    EncryptedOutputFile output = partition == null ? names.newOutputFile() : names.newOutputFile(spec, partition);
    PositionDeleteWriter writer = appenders.newPosDeleteWriter(output, FileFormat.PARQUET, partition);
    for (Object path : positions.keySet()) {
      for (Object position : (Set) positions.get(path)) {
        writer.write(PositionDelete.create().set((String) path, ((Long) position).longValue()));
      }
    }
    writer.close();
    return writer.toDeleteFile();
  }

  private static Object value(Type type, JsonNode node) {
    if (node == null || node.isNull()) return null;
    if (type.isStructType()) {
      GenericRecord record = GenericRecord.create(type.asStructType());
      for (Object o : type.asStructType().fields()) {
        Types.NestedField field = (Types.NestedField) o;
        record.setField(field.name(), value(field.type(), (JsonNode) node.get(field.name())));
      }
      return record;
    }
    if (type.isListType()) {
      List out = new ArrayList();
      for (Object element : node) out.add(value(type.asListType().elementType(), (JsonNode) element));
      return out;
    }
    if (type.isMapType()) {
      Map out = new LinkedHashMap();
      for (Object o : node) {
        JsonNode key = (JsonNode) ((JsonNode) o).get(0);
        JsonNode value = (JsonNode) ((JsonNode) o).get(1);
        out.put(value(type.asMapType().keyType(), key), value(type.asMapType().valueType(), value));
      }
      return out;
    }
    return scalar(type, node.asText());
  }

  private static Object scalar(Type type, String text) {
    String name = type.typeId().name();
    if (name.equals("BOOLEAN")) return Boolean.valueOf(text);
    if (name.equals("INTEGER")) return Integer.valueOf(text);
    if (name.equals("LONG")) return Long.valueOf(text);
    if (name.equals("FLOAT")) return Float.valueOf(text);
    if (name.equals("DOUBLE")) return Double.valueOf(text);
    if (name.equals("DECIMAL")) return new BigDecimal(text);
    if (name.equals("STRING")) return text;
    if (name.equals("DATE")) return DateTimeUtil.dateFromDays(Integer.parseInt(text));
    if (name.equals("TIMESTAMP")) {
      long micros = Long.parseLong(text);
      if (((Types.TimestampType) type).shouldAdjustToUTC()) return DateTimeUtil.timestamptzFromMicros(micros);
      return DateTimeUtil.timestampFromMicros(micros);
    }
    if (name.equals("BINARY")) {
      byte[] bytes = new byte[text.length() / 2];
      for (int i = 0; i < bytes.length; i++) bytes[i] = (byte) Integer.parseInt(text.substring(2 * i, 2 * i + 2), 16);
      return ByteBuffer.wrap(bytes);
    }
    throw new IllegalArgumentException("no values of type " + type);
  }

  /**
   * For each filter: the files that hold a row that matches, separated by FIELD, after one of `ok`, `planned` (planning
   * leaves one of them out) and `read` (a scan with the filter returns other rows). Rows are matched by Iceberg's own
   * evaluator over a read of everything, which prunes nothing.
   */
  public static String filters(Table table, String joined, boolean alsoRead) throws Exception {
    String[] filters = joined.split(NEXT);
    Schema schema = table.schema();
    List columns = new ArrayList(schema.columns());
    columns.add(MetadataColumns.FILE_PATH);
    Types.StructType struct = new Schema(columns).asStruct();
    List rows = read(table, -1, schema);
    List values = new ArrayList();
    for (Object row : rows) values.add(internals(struct, (StructLike) row));
    String[] answers = new String[filters.length];
    for (int i = 0; i < filters.length; i++) {
      Expression filter = ExpressionParser.fromJson(filters[i], schema);
      Evaluator evaluator = new Evaluator(struct, filter, true);
      Set needed = new LinkedHashSet();
      int matching = 0;
      for (int r = 0; r < rows.size(); r++) {
        if (evaluator.eval((StructLike) values.get(r))) {
          needed.add(((Record) rows.get(r)).getField("_file"));
          matching++;
        }
      }
      String verdict = planned(table, filter).containsAll(needed) ? "ok" : "planned";
      // Iceberg's own reader fails where the struct around a filtered field is null
      boolean nested = filters[i].matches(".*\"term\": \"[^\"]*\\\\..*");
      if (alsoRead && !nested && verdict.equals("ok") && !reads(table, filter, matching)) verdict = "read";
      StringBuilder out = new StringBuilder(verdict);
      for (Object file : needed) out.append(FIELD).append(file);
      answers[i] = out.toString();
    }
    return String.join(NEXT, answers);
  }

  private static Set planned(Table table, Expression filter) throws Exception {
    Set paths = new HashSet();
    CloseableIterable tasks = ((TableScan) table.newScan().filter(filter)).planFiles();
    try {
      for (Object task : tasks) paths.add(((FileScanTask) task).file().location());
    } finally {
      tasks.close();
    }
    return paths;
  }

  private static boolean reads(Table table, Expression filter, int matching) throws Exception {
    try {
      return count(table, filter) == matching;
    } catch (NullPointerException error) {
      // Iceberg 1.11's own reader fails at a filter `not NaN` of a column that a file lacks
      if (!error.getStackTrace()[0].getMethodName().equals("notNaN")) throw error;
      return true;
    }
  }

  private static int count(Table table, Expression filter) throws Exception {
    int count = 0;
    CloseableIterable rows = IcebergGenerics.read(table).where(filter).build();
    try {
      for (Object row : rows) count++;
    } finally {
      rows.close();
    }
    return count;
  }

  /** Everything that is wrong with the metadata of the current snapshot, and with files seen for the first time. */
  public static String problems(Table table) throws Exception {
    List problems = new ArrayList();
    Snapshot head = table.currentSnapshot();
    if (head != null) {
      Map live = new LinkedHashMap();
      manifests(table, head, live, problems);
      summaries(table, head, problems);
      deletedOnce(table, head, live, problems);
      for (Object file : live.values()) verify(table, (ContentFile) file, problems);
    }
    return String.join(NEXT, problems);
  }

  /** Paths that some snapshot of the table needs: data, deletes, manifests, manifest lists. */
  public static String referenced(Table table) throws Exception {
    Set paths = new LinkedHashSet();
    for (Object o : table.snapshots()) {
      Snapshot snapshot = (Snapshot) o;
      paths.add(snapshot.manifestListLocation());
      for (Object m : snapshot.allManifests(table.io())) {
        paths.add(((ManifestFile) m).path());
        try {
          for (Object e : entries(table, (ManifestFile) m)) {
            if (((Integer) ((Object[]) e)[0]).intValue() != 2) paths.add(((ContentFile) ((Object[]) e)[1]).location());
          }
        } catch (InvocationTargetException old) {
          // a replaced table may give a column's id another type, in which old partition values cannot be read
        }
      }
    }
    return String.join(NEXT, paths);
  }

  /** Each data file of a snapshot as `path FIELD spec id FIELD value FIELD value ...`; see `exact`. */
  public static String partitions(Table table, long snapshotId) throws Exception {
    List found = new ArrayList();
    CloseableIterable tasks = ((TableScan) table.newScan().useSnapshot(snapshotId)).planFiles();
    try {
      for (Object task : tasks) {
        DataFile file = (DataFile) ((FileScanTask) task).file();
        StringBuilder out = new StringBuilder(file.location()).append(FIELD).append(file.specId());
        for (int i = 0; i < file.partition().size(); i++) {
          out.append(FIELD).append(exact(file.partition().get(i, Object.class)));
        }
        found.add(out.toString());
      }
    } finally {
      tasks.close();
    }
    return String.join(NEXT, found);
  }

  /** A stored value as text: floating-point numbers by the bits of the double, so that no two of them are alike. */
  private static String exact(Object value) {
    if (value == null) return "NULL";
    if (value instanceof Float || value instanceof Double) {
      return String.valueOf(Double.doubleToLongBits(((Number) value).doubleValue()));
    }
    if (value instanceof ByteBuffer) return hex((ByteBuffer) value);
    if (value instanceof BigDecimal) return ((BigDecimal) value).toPlainString();
    return value.toString();
  }

  /** How many live data files the current snapshot has, and rows in them, by its manifests. */
  public static String counts(Table table) throws Exception {
    long files = 0;
    long rows = 0;
    for (Object m : table.currentSnapshot().dataManifests(table.io())) {
      for (Object e : entries(table, (ManifestFile) m)) {
        if (((Integer) ((Object[]) e)[0]).intValue() == 2) continue;
        files++;
        rows += ((ContentFile) ((Object[]) e)[1]).recordCount();
      }
    }
    return files + NEXT + rows;
  }

  private static void manifests(Table table, Snapshot head, Map live, List problems) throws Exception {
    for (Object m : head.allManifests(table.io())) {
      ManifestFile manifest = (ManifestFile) m;
      int[] counts = new int[3];
      long[] rowCounts = new long[3];
      for (Object e : entries(table, manifest)) {
        int status = ((Integer) ((Object[]) e)[0]).intValue();
        ContentFile file = (ContentFile) ((Object[]) e)[1];
        counts[status]++;
        rowCounts[status] += file.recordCount();
        covered(table, manifest, file, problems);
        if (status == 2) continue;
        if (live.put(idOf(file), file) != null) problems.add("listed twice: " + file.location());
        if (!exists(file.location())) problems.add("live and gone from storage: " + file.location());
      }
      same(manifest.path(), "existing-files", manifest.existingFilesCount(), counts[0], problems);
      same(manifest.path(), "added-files", manifest.addedFilesCount(), counts[1], problems);
      same(manifest.path(), "deleted-files", manifest.deletedFilesCount(), counts[2], problems);
      same(manifest.path(), "existing-rows", manifest.existingRowsCount(), rowCounts[0], problems);
      same(manifest.path(), "added-rows", manifest.addedRowsCount(), rowCounts[1], problems);
    }
  }

  private static final String[] TOTALS = {"total-records", "total-data-files", "total-delete-files", "total-files-size"};

  /**
   * What icesize's snapshots add to the running totals is what they add. How far off their parent is stays: Spark's
   * add_files leaves out the bytes, and Iceberg's own writers go on from there.
   */
  private static void summaries(Table table, Snapshot head, List problems) throws Exception {
    for (Object o : SnapshotUtil.ancestorsOf(head.snapshotId(), new Lookup(table))) {
      Snapshot snapshot = (Snapshot) o;
      if (!snapshot.summary().containsKey("icesize.run-id")) continue;
      Snapshot parent = snapshot.parentId() == null ? null : table.snapshot(snapshot.parentId().longValue());
      if (parent == null && snapshot.parentId() != null) continue;
      for (int i = 0; i < TOTALS.length; i++) {
        String said = (String) snapshot.summary().get(TOTALS[i]);
        String before = parent == null ? "0" : (String) parent.summary().get(TOTALS[i]);
        if (said == null) continue;
        long counted = counted(table, snapshot)[i];
        long wanted = before == null ? counted : Long.parseLong(before) + counted - counted(table, parent)[i];
        if (Long.parseLong(said) != wanted) {
          String what = "summary (" + snapshot.operation() + "): " + TOTALS[i];
          problems.add(what + " says " + said + ", it would be " + wanted + ", counted " + counted);
        }
      }
    }
  }

  /** What the manifests of a snapshot (null: none) add up to, in the order of TOTALS. */
  private static long[] counted(Table table, Snapshot snapshot) throws Exception {
    long[] sums = new long[TOTALS.length];
    if (snapshot == null) return sums;
    for (Object m : snapshot.allManifests(table.io())) {
      boolean isData = ((ManifestFile) m).content() == ManifestContent.DATA;
      for (Object e : entries(table, (ManifestFile) m)) {
        if (((Integer) ((Object[]) e)[0]).intValue() == 2) continue;
        ContentFile file = (ContentFile) ((Object[]) e)[1];
        sums[0] += isData ? file.recordCount() : 0;
        sums[isData ? 1 : 2]++;
        sums[3] += ScanTaskUtil.contentSizeInBytes(file);
      }
    }
    return sums;
  }

  /** Several deletion vectors share a file. */
  private static String idOf(ContentFile file) {
    Long offset = file instanceof DeleteFile ? ((DeleteFile) file).contentOffset() : null;
    return offset == null ? file.location() : file.location() + " " + offset;
  }

  private static boolean exists(String location) {
    return new File(location.replaceFirst("^file:/*", "/")).exists();
  }

  private static void same(String where, String what, Object said, long counted, List problems) {
    if (said != null && ((Number) said).longValue() != counted) {
      problems.add(where + ": " + what + " says " + said + ", counted " + counted);
    }
  }

  /** Entries of a manifest as (status, file): 0 existing, 1 added, 2 deleted; manifests never change. */
  private static List entries(Table table, ManifestFile manifest) throws Exception {
    String key = manifest.path() + table.specs().size() + " " + table.schema().schemaId();
    List found = (List) manifests.get(key);
    if (found == null) {
      found = manifest.content() == ManifestContent.DATA
          ? copies(ManifestFiles.read(manifest, table.io(), table.specs()))
          : copies(ManifestFiles.readDeleteManifest(manifest, table.io(), table.specs()));
      manifests.put(key, found);
    }
    return found;
  }

  /** Iceberg gives live entries only to those who are not of its package. */
  private static List copies(ManifestReader reader) throws Exception {
    Method all = ManifestReader.class.getDeclaredMethod("entries", new Class[0]);
    all.setAccessible(true);
    List found = new ArrayList();
    try {
      for (Object entry : (CloseableIterable) all.invoke(reader, new Object[0])) {
        Object copy = asked(entry, "copy");
        found.add(new Object[] {Integer.valueOf(((Enum) asked(copy, "status")).ordinal()), asked(copy, "file")});
      }
    } finally {
      reader.close();
    }
    return found;
  }

  private static Object asked(Object entry, String what) throws Exception {
    Method method = entry.getClass().getMethod(what, new Class[0]);
    method.setAccessible(true);
    return method.invoke(entry, new Object[0]);
  }

  /** The bounds that the manifest list has of the manifest's partition values, against the file's. */
  private static void covered(Table table, ManifestFile manifest, ContentFile file, List problems) {
    PartitionSpec spec = (PartitionSpec) table.specs().get(file.specId());
    List summaries = manifest.partitions();
    if (summaries == null) return;
    for (int i = 0; i < summaries.size(); i++) {
      ManifestFile.PartitionFieldSummary summary = (ManifestFile.PartitionFieldSummary) summaries.get(i);
      Type type = ((Types.NestedField) spec.partitionType().fields().get(i)).type();
      Object value = file.partition().get(i, Object.class);
      String what = manifest.path() + ": partition field " + i + " of " + file.location() + " is " + value;
      if (type.typeId().name().equals("UNKNOWN")) continue;
      if (value == null) {
        if (!summary.containsNull()) problems.add(what + ", and the manifest list says there is no null");
      } else if (isNaN(value)) {
        if (Boolean.FALSE.equals(summary.containsNaN())) problems.add(what + ", and the list says there is no NaN");
      } else if (summary.lowerBound() == null || summary.upperBound() == null) {
        problems.add(what + ", and the manifest list has no bounds");
      } else if (!within(type, value, summary.lowerBound(), summary.upperBound())) {
        problems.add(what + ", outside of the bounds in the manifest list");
      }
    }
  }

  private static boolean isNaN(Object value) {
    return value instanceof Number && Double.isNaN(((Number) value).doubleValue());
  }

  private static boolean within(Type type, Object value, ByteBuffer low, ByteBuffer high) {
    Comparator order = Comparators.forType(type.asPrimitiveType());
    if (low != null && order.compare(Conversions.fromByteBuffer(type, low), value) > 0) return false;
    return high == null || order.compare(Conversions.fromByteBuffer(type, high), value) >= 0;
  }

  private static boolean isOurs(Table table, ManifestFile manifest) {
    Snapshot snapshot = table.snapshot(manifest.snapshotId().longValue());
    return snapshot != null && snapshot.summary().containsKey("icesize.run-id");
  }

  /**
   * No path that a snapshot behind the head removed may be live in it: other engines' expiry deletes such paths. Java
   * itself does that with vectors that share a Puffin file.
   */
  private static void deletedOnce(Table table, Snapshot head, Map live, List problems) throws Exception {
    Set paths = new HashSet();
    for (Object file : live.values()) paths.add(((ContentFile) file).location());
    for (Object o : SnapshotUtil.ancestorsOf(head.snapshotId(), new Lookup(table))) {
      Snapshot snapshot = (Snapshot) o;
      for (Object m : snapshot.allManifests(table.io())) {
        ManifestFile manifest = (ManifestFile) m;
        for (Object e : entries(table, manifest)) {
          int status = ((Integer) ((Object[]) e)[0]).intValue();
          ContentFile file = (ContentFile) ((Object[]) e)[1];
          String path = file.location();
          if (!idOf(file).equals(path) && !isOurs(table, manifest)) continue;
          if (status == 2 && paths.contains(path)) {
            problems.add("live, and listed as deleted by snapshot " + manifest.snapshotId() + ": " + path);
          }
        }
      }
    }
  }

  /** Snapshots by id. */
  public static class Lookup implements java.util.function.Function {
    private final Table table;

    public Lookup(Table table) {
      this.table = table;
    }

    public Object apply(Object id) {
      return table.snapshot(((Long) id).longValue());
    }
  }

  /** The rows that lie in a data file against its entry: count, partition, bounds, nulls and NaNs of each column. */
  private static void verify(final Table table, ContentFile file, List problems) throws Exception {
    if (!(file instanceof DataFile) || file.format() != FileFormat.PARQUET || !exists(file.location())) return;
    if (!verified.add(file.location() + table.schema().schemaId())) return;
    final Schema schema = table.schema();
    Parquet.ReadBuilder builder = Parquet.read(table.io().newInputFile(file.location())).project(schema);
    builder = builder.createReaderFunc(new java.util.function.Function() {
      public Object apply(Object fileSchema) {
        return GenericParquetReaders.buildReader(schema, (MessageType) fileSchema);
      }
    });
    String mapping = (String) table.properties().get("schema.name-mapping.default");
    if (mapping != null) builder = builder.withNameMapping(NameMappingParser.fromJson(mapping));
    List rows = new ArrayList();
    CloseableIterable found = builder.build();
    try {
      for (Object row : found) rows.add(row);
    } finally {
      found.close();
    }
    if (rows.size() != file.recordCount()) {
      problems.add(file.location() + ": record_count says " + file.recordCount() + ", read " + rows.size());
    }
    if (mapping == null) partitioned(table, file, rows, problems);
    leaves(schema.asStruct(), new ArrayList(), file, rows, problems, mapping != null);
  }

  private static void partitioned(Table table, ContentFile file, List rows, List problems) {
    PartitionSpec spec = (PartitionSpec) table.specs().get(file.specId());
    for (int i = 0; i < spec.fields().size(); i++) {
      PartitionField field = (PartitionField) spec.fields().get(i);
      Types.NestedField source = table.schema().findField(field.sourceId());
      if (source == null || field.transform().isVoid()) continue;
      int at = table.schema().columns().indexOf(source);
      if (at < 0) continue;
      Object said = file.partition().get(i, Object.class);
      org.apache.iceberg.util.SerializableFunction transform = field.transform().bind(source.type());
      InternalRecordWrapper wrapper = new InternalRecordWrapper(table.schema().asStruct());
      for (Object row : rows) {
        Object value = transform.apply(wrapper.wrap((Record) row).get(at, Object.class));
        Type type = field.transform().getResultType(source.type());
        if (!text(type, said).equals(text(type, value))) {
          String what = text(type, said) + ", its row " + text(type, value);
          problems.add(file.location() + ": partition " + field.name() + " says " + what);
          break;
        }
      }
    }
  }

  private static void leaves(
      Types.StructType type, List path, ContentFile file, List rows, List problems, boolean mapped) {
    for (int i = 0; i < type.fields().size(); i++) {
      Types.NestedField field = (Types.NestedField) type.fields().get(i);
      List here = new ArrayList(path);
      here.add(Integer.valueOf(i));
      if (field.type().isStructType()) leaves(field.type().asStructType(), here, file, rows, problems, mapped);
      if (field.type().isPrimitiveType()) leaf(field, here, file, rows, problems, mapped);
    }
  }

  private static void leaf(
      Types.NestedField field, List path, ContentFile file, List rows, List problems, boolean mapped) {
    Integer id = Integer.valueOf(field.fieldId());
    ByteBuffer low = file.lowerBounds() == null ? null : (ByteBuffer) file.lowerBounds().get(id);
    ByteBuffer high = file.upperBounds() == null ? null : (ByteBuffer) file.upperBounds().get(id);
    long nulls = 0;
    long nans = 0;
    String what = file.location() + ": column " + field.name();
    for (Object row : rows) {
      Object value = row;
      for (Object at : path) value = value == null ? null : ((Record) value).get(((Integer) at).intValue());
      if (value == null) {
        nulls++;
      } else if (isNaN(value)) {
        nans++;
      } else if (!within(field.type(), internal(field.type(), value), low, high)) {
        problems.add(what + " holds " + value + ", outside of its bounds");
        return;
      }
    }
    counted(file.nullValueCounts(), id, what + ": nulls", nulls, problems, mapped);
    counted(file.nanValueCounts(), id, what + ": NaNs", nans, problems, mapped);
  }

  private static void counted(Map counts, Integer id, String what, long counted, List problems, boolean mapped) {
    Object said = counts == null ? null : counts.get(id);
    if (said != null && ((Long) said).longValue() != counted) {
      problems.add(what + " are said to be " + said + ", counted " + counted);
    }
  }

  /** A row with values as Iceberg's expressions compare them; `InternalRecordWrapper` fails at a null struct. */
  private static StructLike internals(Types.StructType type, StructLike row) {
    GenericRecord out = GenericRecord.create(type);
    for (int i = 0; i < type.fields().size(); i++) {
      Type field = ((Types.NestedField) type.fields().get(i)).type();
      Object value = row.get(i, Object.class);
      if (value != null && field.isStructType()) value = internals(field.asStructType(), (StructLike) value);
      if (value != null && field.isPrimitiveType()) value = internal(field, value);
      out.set(i, value);
    }
    return out;
  }

  private static Object internal(Type type, Object value) {
    Types.StructType one = Types.StructType.of(new Types.NestedField[] {Types.NestedField.optional(1, "v", type)});
    GenericRecord record = GenericRecord.create(one);
    record.set(0, value);
    return new InternalRecordWrapper(one).wrap(record).get(0, Object.class);
  }

  private static String partition(PartitionSpec spec, StructLike partition) {
    return text(spec.partitionType(), partition);
  }
}
