// node pg_boss.mjs URL JOBS: prints the seconds in which pg-boss moves so many jobs.
import { performance } from "node:perf_hooks";
import PgBoss from "pg-boss";

const [url, jobs] = process.argv.slice(2);
const QUEUE = "orders";
// As many as a page of the relay. By `work` it would take one every two seconds.
const BATCH = 1000;
const WORKERS = 4;

const boss = new PgBoss({ connectionString: url, supervise: false, schedule: false });
boss.on("error", (error) => { throw error; });
await boss.start();
await boss.createQueue(QUEUE);
for (let first = 0; first < jobs; first += BATCH) {
    const count = Math.min(BATCH, jobs - first);
    const data = { note: "x".repeat(188) };
    await boss.insert(Array.from({ length: count }, () => ({ name: QUEUE, data })));
}
await boss.getDb().executeSql("VACUUM ANALYZE");

let moved = 0;
const began = performance.now();
await Promise.all(Array.from({ length: WORKERS }, async () => {
    for (;;) {
        const taken = await boss.fetch(QUEUE, { batchSize: BATCH, priority: false });
        if (taken.length === 0) return;
        await boss.complete(QUEUE, taken.map((job) => job.id));
        moved += taken.length;
    }
}));
const seconds = (performance.now() - began) / 1000;
if (moved !== Number(jobs)) throw new Error(`${moved} jobs of ${jobs} were moved`);
console.log(seconds);
await boss.stop({ graceful: false });
process.exit(0);
