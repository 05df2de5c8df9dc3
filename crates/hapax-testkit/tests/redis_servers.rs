//! Tests the Redis and Valkey servers that other tests use.

use std::path::Path;

use hapax_testkit::servers::{
    Redis, RedisCluster, RedisProgram, RedisSentinel, faketime, faketime_file,
};

/// A server that keeps every write that it has confirmed.
const DURABLE: &[(&str, &str)] = &[("appendonly", "yes"), ("appendfsync", "always")];

#[test]
fn a_shared_redis_answers() {
    let Some(redis) = Redis::shared() else {
        return;
    };
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    assert!(redis.is_up());
    assert_eq!(redis.cli(&["SET", "answers", "two\r\nlines, ä"]), "OK");
    assert_eq!(redis.cli(&["GET", "answers"]), "two\r\nlines, ä");
    assert_eq!(redis.cli(&["GET", "answers nothing"]), "");
    assert_eq!(redis.cli(&["RPUSH", "answers list", "a", "", "b"]), "3");
    assert_eq!(redis.cli(&["LRANGE", "answers list", "0", "-1"]), "a\n\nb");
    assert_eq!(redis.cli(&["LRANGE", "answers nothing", "0", "-1"]), "");
    let nested = "return {1, {'a', false}, redis.error_reply('ERR no')}";
    assert_eq!(redis.cli(&["EVAL", nested, "0"]), "1\na\n\nERR no");
    let error = redis.try_cli(&["INCR", "answers"]).unwrap_err();
    assert!(error.starts_with("ERR value is not an integer"), "{error}");
    // Nothing is kept on disk by default.
    assert_eq!(redis.cli(&["CONFIG", "GET", "save"]), "save\n");
    assert_eq!(
        redis.cli(&["CONFIG", "GET", "appendonly"]),
        "appendonly\nno"
    );
}

#[test]
fn redis_has_after_a_kill_what_it_confirmed() {
    has_after_a_kill_what_it_confirmed(RedisProgram::Redis, "redis_version:7.");
}

#[test]
fn valkey_has_after_a_kill_what_it_confirmed() {
    has_after_a_kill_what_it_confirmed(RedisProgram::Valkey, "valkey_version:");
}

fn has_after_a_kill_what_it_confirmed(program: RedisProgram, version: &str) {
    let Some(mut redis) = Redis::start_with(program, DURABLE, &[]) else {
        return;
    };
    assert!(redis.cli(&["INFO", "server"]).contains(version));
    let (port, pid) = (redis.port(), redis.pid());
    for number in 0..100 {
        redis.cli(&["RPUSH", "list", &number.to_string()]);
    }
    redis.kill();
    assert!(!redis.is_up() && redis.try_cli(&["PING"]).is_err());
    assert!(redis.directory().join("appendonlydir").is_dir());
    redis.restart();
    assert_eq!(redis.cli(&["LLEN", "list"]), "100");
    assert_eq!(redis.port(), port);
    assert_ne!(redis.pid(), pid);
}

#[test]
fn redis_without_a_disk_has_nothing_after_a_kill() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    redis.cli(&["SET", "key", "value"]);
    redis.kill();
    redis.restart();
    assert_eq!(redis.cli(&["DBSIZE"]), "0");
}

#[test]
fn a_paused_redis_answers_when_it_is_resumed() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    redis.cli(&["SET", "key", "value"]);
    redis.pause();
    assert!(!redis.is_up());
    redis.resume();
    assert_eq!(redis.cli(&["GET", "key"]), "value");
    redis.pause();
    redis.kill();
    redis.restart();
    assert!(redis.is_up());
}

#[test]
fn a_dropped_redis_leaves_nothing_behind() {
    let Some(redis) = Redis::start(DURABLE) else {
        return;
    };
    let (directory, pid) = (redis.directory().to_owned(), redis.pid());
    assert!(directory.is_dir());
    drop(redis);
    assert!(!directory.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn redis_with_a_password_has_it_in_its_url() {
    let Some(redis) = Redis::start(&[("requirepass", "secret")]) else {
        return;
    };
    let url = format!("redis://:secret@127.0.0.1:{}", redis.port());
    assert_eq!(redis.url(), url);
    assert_eq!(redis.cli(&["ACL", "WHOAMI"]), "default");
}

#[test]
fn the_clock_of_a_running_redis_steps() {
    clock_of_a_running_server_steps(RedisProgram::Redis);
}

#[test]
fn the_clock_of_a_running_valkey_steps() {
    clock_of_a_running_server_steps(RedisProgram::Valkey);
}

fn clock_of_a_running_server_steps(program: RedisProgram) {
    let name = format!("hapax-{program:?}-{}", std::process::id());
    let file = std::env::temp_dir().join(name);
    let step = |offset: &str| {
        let new = file.with_extension("new");
        std::fs::write(&new, offset).unwrap();
        std::fs::rename(&new, &file).unwrap();
    };
    let Some(environment) = faketime_file(&file) else {
        return;
    };
    step("+0s");
    let Some(mut redis) = Redis::start_with(program, DURABLE, &environment) else {
        std::fs::remove_file(&file).unwrap();
        return;
    };
    redis.cli(&["SET", "key", "value", "EX", "600"]);
    let expires_in = || redis.cli(&["TTL", "key"]).parse::<i64>().unwrap();
    step("-3600s");
    // Valkey looks at the clock only once a millisecond.
    while expires_in() <= 600 {}
    assert!((4190..=4200).contains(&expires_in()), "{}", expires_in());
    step("+3600s");
    while expires_in() > 0 {}
    assert_eq!(redis.cli(&["GET", "key"]), "");
    // A restarted server has the same clock.
    redis.cli(&["SET", "key", "value", "EX", "600"]);
    redis.kill();
    redis.restart();
    let seconds: u64 = redis.cli(&["TTL", "key"]).parse().unwrap();
    assert!((590..=600).contains(&seconds), "{seconds}");
    let pid = redis.pid();
    drop(redis);
    assert!(!Path::new(&format!("/dev/shm/faketime_shm_{pid}")).exists());
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn redis_with_a_fixed_offset_is_ahead() {
    let Some(environment) = faketime("+3600s") else {
        return;
    };
    let Some(ahead) = Redis::start_with(RedisProgram::Redis, &[], &environment) else {
        return;
    };
    let Some(redis) = Redis::shared() else {
        return;
    };
    let seconds = |redis: &Redis| -> i64 {
        let time = redis.cli(&["TIME"]);
        time.lines().next().unwrap().parse().unwrap()
    };
    let ahead = seconds(&ahead) - seconds(redis);
    assert!((3595..=3605).contains(&ahead), "{ahead}");
}

#[test]
fn sentinels_of_redis_fail_over() {
    sentinels_fail_over(RedisProgram::Redis);
}

#[test]
fn sentinels_of_valkey_fail_over() {
    sentinels_fail_over(RedisProgram::Valkey);
}

fn sentinels_fail_over(program: RedisProgram) {
    let Some(mut group) = RedisSentinel::start_with(program, DURABLE) else {
        return;
    };
    assert!(group.url().starts_with("redis+sentinel://127.0.0.1:"));
    assert!(group.url().ends_with("/hapax") && group.url().matches(',').count() == 2);
    let first = group.redis(group.master());
    first.cli(&["SET", "key", "value"]);
    first.wait_for_replicas(2);

    let dead = group.kill_master();
    let second = group.wait_for_failover();
    assert_ne!(second, dead);
    assert_eq!(group.master(), second);
    assert_eq!(group.redis(second).cli(&["GET", "key"]), "value");
    group.redis(second).cli(&["SET", "key", "second value"]);

    group.restart_dead();
    let error = group.redis(dead).try_cli(&["SET", "key", "lost"]);
    assert!(error.unwrap_err().starts_with("READONLY"));
    assert_eq!(group.redis(dead).cli(&["GET", "key"]), "second value");

    let before = group.master();
    let third = group.failover();
    assert_ne!(third, before);
    assert_eq!(group.redis(third).cli(&["GET", "key"]), "second value");
    assert_eq!(group.redis(third).cli(&["SET", "key", "third value"]), "OK");
}

#[test]
fn sentinels_take_a_paused_master_for_dead() {
    let Some(group) = RedisSentinel::start(&[]) else {
        return;
    };
    let paused = group.master();
    group.redis(paused).pause();
    assert_ne!(group.wait_for_failover(), paused);
}

#[test]
fn a_cluster_of_redis_moves_a_slot() {
    cluster_moves_a_slot(RedisProgram::Redis);
}

#[test]
fn a_cluster_of_valkey_moves_a_slot() {
    cluster_moves_a_slot(RedisProgram::Valkey);
}

fn cluster_moves_a_slot(program: RedisProgram) {
    let Some(mut cluster) = RedisCluster::start_with(program, false, DURABLE) else {
        return;
    };
    assert!(cluster.url().starts_with("redis+cluster://127.0.0.1:"));
    assert_eq!(cluster.url().matches(',').count(), 2);
    for key in ["123456789", "", "{user}:a", "a{}b", "a{{b}}c", "a}{b", "ä"] {
        let slot = cluster.nodes()[0].cli(&["CLUSTER", "KEYSLOT", key]);
        assert_eq!(cluster.slot_of(key).to_string(), slot, "{key}");
    }

    let slot = cluster.slot_of("{tag}");
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    for number in 0..250 {
        cluster.nodes()[from].cli(&["SET", &format!("{{tag}}{number}"), "v", "EX", "600"]);
    }
    cluster.move_slot(slot, to);
    assert_eq!(cluster.owner_of(slot), to);
    let (old, new) = (&cluster.nodes()[from], &cluster.nodes()[to]);
    assert_eq!(new.cli(&["GET", "{tag}249"]), "v");
    let seconds: u64 = new.cli(&["TTL", "{tag}249"]).parse().unwrap();
    assert!((500..=600).contains(&seconds), "{seconds}");
    assert_eq!(new.cli(&["DBSIZE"]), "250");
    assert_eq!(old.cli(&["DBSIZE"]), "0");
    let moved = format!("MOVED {slot} {}", new.address());
    assert_eq!(old.try_cli(&["GET", "{tag}249"]), Err(moved));

    cluster.kill(to);
    cluster.restart(to);
    cluster.wait_until_ok();
    assert_eq!(cluster.nodes()[to].cli(&["GET", "{tag}249"]), "v");
}

#[test]
fn a_replica_in_a_cluster_takes_over() {
    let Some(mut cluster) = RedisCluster::start(true, &[]) else {
        return;
    };
    let slot = cluster.slot_of("key");
    let master = cluster.owner_of(slot);
    let replica = master + 3;
    cluster.nodes()[master].cli(&["SET", "key", "value"]);
    cluster.nodes()[master].wait_for_replicas(1);
    cluster.kill(master);
    cluster.wait_for_failover(master);
    assert_eq!(cluster.owner_of(slot), replica);
    assert_eq!(cluster.nodes()[replica].cli(&["GET", "key"]), "value");
    cluster.restart(master);
    cluster.wait_until_ok();
    // It has come back as a replica. A slot that moves back and forth is known to the replicas too.
    let role = cluster.nodes()[master].cli(&["ROLE"]);
    assert!(role.starts_with("slave"), "{role}");
    let to = (master + 1) % 3;
    cluster.move_slot(slot, to);
    assert_eq!(cluster.nodes()[to].cli(&["GET", "key"]), "value");
    cluster.move_slot(slot, replica);
    assert_eq!(cluster.nodes()[replica].cli(&["GET", "key"]), "value");
}
