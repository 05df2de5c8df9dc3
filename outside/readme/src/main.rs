include!(concat!(env!("OUT_DIR"), "/program.rs"));
