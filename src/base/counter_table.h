/* base/counter_table.h -- the counters that the modules of this process publish.
 *
 * A row names a number and has a function that reads it. A module adds rows for its objects and
 * removes them before the objects are freed. The table always has the rows of base/ itself:
 * memory, files and threads. A dashboard or an exporter visits all rows; until then a row costs
 * nothing, because values are read during the visit only.
 *
 *     d->row = (ch_counter_row){.name = "device_bytes", .unit = "bytes", ..., .arg = d};
 *     ch__counter_row_add(&d->row);
 *     ...
 *     ch__counter_row_remove(&d->row);
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_COUNTER_TABLE_H
#define BASE_COUNTER_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* A row belongs to its module, and must not change while it is in the table. Texts are
 * borrowed. */
typedef struct ch_counter_row {
    const char *name;     /* lower-case letters, digits and '_', which Prometheus accepts */
    const char *unit;     /* plural: "bytes" */
    const char *help;     /* description, a noun phrase */
    const char *label;    /* name of the object that is counted; NULL: the process */
    bool        is_total; /* true: the value only rises; false: a level, which may fall */
    /* Returns the value. Any thread may call it. It must not add or remove rows, and must not
     * wait for a lock: another thread may hold that lock while it adds a row. */
    int64_t (*read)(void *arg);
    void                  *arg;
    struct ch_counter_row *prev, *next; /* neighbours in the table */
} ch_counter_row;

/* Adds a row at the end. The row must not be in the table. Any thread may call it. */
void ch__counter_row_add(ch_counter_row *row);
/* Removes a row. No read of the row is running when this function returns. */
void ch__counter_row_remove(ch_counter_row *row);
/* Calls visit() with each row and its value: first the rows of base/, then the others in the
 * order in which they were added. visit() must not add or remove rows. */
void ch__counter_rows_visit(void (*visit)(void *arg, const ch_counter_row *row, int64_t value),
                            void *arg);

#endif
