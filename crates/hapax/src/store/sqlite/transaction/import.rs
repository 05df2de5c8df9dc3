//! Writes records from another store verbatim: the only writes that bypass the guard, into a store
//! that is not in use.

use hapax_core::store::StoreError;

use super::WriteTransaction;
use crate::store::sqlite::transfer::{self, Arrived};
use crate::store::sqlite_kit::audit;

impl WriteTransaction<'_> {
    pub(in crate::store::sqlite) fn import(
        &mut self,
        arrived: &mut Arrived,
    ) -> Result<(), StoreError> {
        transfer::expect_arriving(self.rows.connection, arrived.copy)?;
        for (head, answer) in std::mem::take(&mut arrived.records) {
            // The floor must be above every imported fence, so that none is assigned again.
            self.meta.floor = self.meta.floor.max(head.fence);
            self.is_meta_changed = true;
            let current = self.find(&head.id)?;
            if current
                .as_ref()
                .is_none_or(|stored| stored.head.version < head.version)
            {
                let mut answer = answer;
                let result = self.write(current.as_ref(), head, answer.as_mut());
                self.written(result)?;
            }
        }
        let connection = self.rows.connection;
        let result = audit::OWN.insert_new(connection, &arrived.log);
        self.written(result)?;
        let result = transfer::go_on(connection, arrived.position)?;
        self.written(result)
    }
}
