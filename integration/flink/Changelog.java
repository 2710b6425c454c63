import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.Collector;
import org.apache.iceberg.DistributionMode;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.flink.CatalogLoader;
import org.apache.iceberg.flink.FlinkSchemaUtil;
import org.apache.iceberg.flink.TableLoader;
import org.apache.iceberg.flink.sink.FlinkSink;
import org.apache.iceberg.flink.sink.IcebergSink;

/**
 * A Flink job in one JVM that writes a changelog into a table by one of Iceberg's sinks, and fails at planned points.
 * `integration.flink.job` computes the rows that it leaves: change n is a function of n and the seed alone.
 * With FlinkSink the job ends with its source. With IcebergSink a savepoint ends it, when checkpoints hold all changes.
 * That sink does not commit the last rows of a source that ends. If a savepoint aborts a checkpoint, the sink commits
 * both as one, and rows of the first outlive their deletes in the second. Other writers matter to neither.
 *
 * Arguments: URI of the REST catalog, namespace, table, mode (upsert or changelog), seed,
 * changes, changes per second, keys, failures, folder of checkpoints, sink.
 */
public class Changelog {
  private static final Set<Long> FIRED = ConcurrentHashMap.newKeySet();
  private static final AtomicInteger STARTS = new AtomicInteger();
  private static final AtomicBoolean PASSED = new AtomicBoolean();
  private static final AtomicInteger CHECKPOINTS_AFTER = new AtomicInteger();

  public static void main(String[] a) throws Exception {
    boolean upsert = a[3].equals("upsert");
    long seed = Long.parseLong(a[4]), changes = Long.parseLong(a[5]), keys = Long.parseLong(a[7]);
    TableLoader loader =
        TableLoader.fromCatalog(
            CatalogLoader.rest("rest", new org.apache.hadoop.conf.Configuration(), Map.of("uri", a[0])),
            TableIdentifier.of(a[1], a[2]));
    loader.open();
    InternalTypeInfo<RowData> type = InternalTypeInfo.of(FlinkSchemaUtil.convert(loader.loadTable().schema()));

    StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2, settings(a[9]));
    boolean ends = a[10].equals("FlinkSink");
    long failEvery = changes / (Long.parseLong(a[8]) + 1) + 1;
    DataStream<RowData> rows =
        env.fromSequence(1, ends ? changes : Long.MAX_VALUE).setParallelism(1)
            .map(new Failing(1_000_000_000L / Long.parseLong(a[6]), failEvery, changes)).returns(Types.LONG)
            .setParallelism(1)
            .filter(n -> n <= changes).setParallelism(1)
            .keyBy(n -> key(seed, n, keys))
            .process(new Changes(seed, keys)).returns(type);
    if (ends) {
      FlinkSink.forRowData(rows).tableLoader(loader).equalityFieldColumns(Arrays.asList("id", "p"))
          .distributionMode(DistributionMode.NONE).upsert(upsert).uidPrefix("changelog").append();
    } else {
      IcebergSink.forRowData(rows).tableLoader(loader).equalityFieldColumns(Arrays.asList("id", "p"))
          .distributionMode(DistributionMode.NONE).upsert(upsert).uidSuffix("changelog").append();
    }
    JobClient job = env.executeAsync("changelog");
    while (!ends && CHECKPOINTS_AFTER.get() < 2) {
      Thread.sleep(10);
    }
    if (!ends) {
      job.stopWithSavepoint(false, "file://" + a[9], SavepointFormatType.CANONICAL).get();
    }
    job.getJobExecutionResult().get();
    System.out.println("starts " + STARTS.get());
    System.exit(0);
  }

  private static Configuration settings(String checkpoints) {
    Configuration found = new Configuration();
    found.setString("execution.checkpointing.interval", "1s");
    found.setString("execution.checkpointing.dir", "file://" + checkpoints);
    found.setString("restart-strategy.type", "fixed-delay");
    found.setString("restart-strategy.fixed-delay.attempts", "1000000");
    found.setString("restart-strategy.fixed-delay.delay", "200ms");
    found.setString("taskmanager.memory.network.min", "32m");
    found.setString("taskmanager.memory.network.max", "32m");
    found.setString("taskmanager.memory.managed.size", "32m");
    return found;
  }

  static long mixed(long seed, long n) {
    long z = (seed << 40 ^ n) + 0x9E3779B97F4A7C15L;
    z = (z ^ z >>> 30) * 0xBF58476D1CE4E5B9L;
    z = (z ^ z >>> 27) * 0x94D049BB133111EBL;
    return z ^ z >>> 31;
  }

  static long key(long seed, long n, long keys) {
    return Long.remainderUnsigned(mixed(seed, n), keys);
  }

  /** Passes numbers on at a rate, notes when all changes have passed; fails once at each planned one, in turn at once and when a checkpoint is complete. */
  private static class Failing extends RichMapFunction<Long, Long> implements CheckpointListener {
    private static final AtomicBoolean AT_CHECKPOINT = new AtomicBoolean();
    private final long pause, every, changes;

    Failing(long pause, long every, long changes) {
      this.pause = pause;
      this.every = every;
      this.changes = changes;
    }

    @Override
    public void open(OpenContext context) {
      STARTS.incrementAndGet();
      PASSED.set(false);
      CHECKPOINTS_AFTER.set(0);
    }

    @Override
    public Long map(Long n) {
      PASSED.compareAndSet(false, n > changes);
      if (n <= changes && n % every == 0 && FIRED.add(n)) {
        if (n / every % 2 == 1) {
          throw new IllegalStateException("planned failure at change " + n);
        }
        AT_CHECKPOINT.set(true);
      }
      LockSupport.parkNanos(pause);
      return n;
    }

    @Override
    public void notifyCheckpointComplete(long id) {
      if (AT_CHECKPOINT.getAndSet(false)) {
        throw new IllegalStateException("planned failure at checkpoint " + id);
      }
      if (PASSED.get()) {
        CHECKPOINTS_AFTER.incrementAndGet();
      }
    }
  }

  /** A change of a key: a new row, another row in its place, or none. */
  private static class Changes extends KeyedProcessFunction<Long, Long, RowData> {
    private final long seed, keys;
    private transient ValueState<Long> last;

    Changes(long seed, long keys) {
      this.seed = seed;
      this.keys = keys;
    }

    @Override
    public void open(OpenContext context) {
      last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Types.LONG));
    }

    @Override
    public void processElement(Long n, Context context, Collector<RowData> out) throws Exception {
      Long before = last.value();
      if (before == null) {
        out.collect(row(RowKind.INSERT, n));
      } else if ((mixed(seed, n) >>> 40 & 3) == 0) {
        out.collect(row(RowKind.DELETE, before));
        last.clear();
        return;
      } else {
        out.collect(row(RowKind.UPDATE_BEFORE, before));
        out.collect(row(RowKind.UPDATE_AFTER, n));
      }
      last.update(n);
    }

    private RowData row(RowKind kind, long n) {
      long id = key(seed, n, keys);
      StringData p = StringData.fromString("p" + id % 3);
      return GenericRowData.ofKind(kind, id, p, n, StringData.fromString("text " + n % 1000));
    }
  }
}
