// node graphile_worker.mjs URL JOBS: prints the seconds in which graphile-worker moves so many jobs.
import { performance } from "node:perf_hooks";
import { Logger, run, runMigrations } from "graphile-worker";
import pg from "pg";

const [url, jobs] = process.argv.slice(2);
// Its batches are what its guide to performance advises.
const preset = {
    worker: {
        connectionString: url,
        maxPoolSize: 10,
        logger: new Logger(() => () => {}),
        concurrentJobs: 24,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
    },
};

await runMigrations({ preset });
const client = new pg.Client({ connectionString: url });
await client.connect();
await client.query(
    `SELECT graphile_worker.add_jobs(ARRAY(
         SELECT json_populate_record(NULL::graphile_worker.job_spec, json_build_object(
             'identifier', 'order', 'payload', json_build_object('note', repeat('x', 188))))
         FROM generate_series(1, $1::int4)))`,
    [jobs],
);
await client.query("VACUUM ANALYZE");

let moved = 0;
let all;
const done = new Promise((resolve) => { all = resolve; });
const began = performance.now();
const runner = await run({
    preset,
    taskList: {
        order: () => {
            moved += 1;
            if (moved === Number(jobs)) all();
        },
    },
});
await done;
// Writes down what is done.
await runner.stop();
const seconds = (performance.now() - began) / 1000;
const { rows } = await client.query("SELECT count(*) FROM graphile_worker.jobs");
if (rows[0].count !== "0") throw new Error(`${rows[0].count} jobs are left`);
console.log(seconds);
process.exit(0);
