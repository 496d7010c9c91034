/* strategy/cut.h -- consistent snapshots of variables on parameter servers, for checkpoints.
 *
 *     // in record: ch__per_worker_save
 *     rc = ch__cut_take(st, CH_MARKS_KEEP, record, &positions, &cut);
 *     ... steps run again; any thread, several at the same time:
 *     rc = ch__cut_read(cut, shard, &region, memory);
 *     ch__cut_end(cut);
 *
 * In a cut every step is complete or absent, although the updates of a step go to several
 * servers. The steps that are queued and were not sent to a worker are absent. They are not
 * waited for: they run after the cut. save/ calls these functions.
 *
 * Memory: a server copies a variable at the first write to it after the cut, so a cut takes up
 * to the size of the variables on each server. The servers prepare this memory before the first
 * cut and keep it until ch__cut_free_memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_CUT_H
#define STRATEGY_CUT_H

#include "cohort/coordinator.h"
#include "strategy/strategy.h"

typedef struct ch_cut ch_cut;

/* Returns true if the variables of a strategy are on parameter servers, so that a checkpoint
 * needs a cut. */
bool ch__cut_is_needed(const ch_strategy *st);

/* The marks of changed rows (strategy/changed_rows.h) on the servers from a cut on. */
typedef enum ch_cut_marks {
    CH_MARKS_KEEP, /* they stay; if marking has not begun, nothing is marked */
    /* All servers begin to mark: no row is marked until it changes. After an error of the cut,
     * some servers have begun, so marks must not be used before another cut begins them. */
    CH_MARKS_BEGIN
} ch_cut_marks;

/* Called by ch__cut_take between the snapshot and the steps after it. */
typedef ch_status (*ch_between_fn)(void *arg);

/* Takes a cut. Holds back the steps that were not sent to workers, waits until the others have
 * ended, takes a snapshot on every server, calls `between`, and lets the steps go on. The
 * snapshot stays until ch__cut_end.
 *
 * `between` records everything that must agree with the snapshot; it may be NULL. It must not
 * run steps or set variables. Its error is returned. Threads that schedule steps meanwhile
 * block only if the queue is full.
 *
 * Must not be called inside a step. If a worker is lost, other workers run its steps again
 * before the snapshot. Errors: that of a step that has failed, which the next join returns too;
 * UNAVAILABLE if a server is lost; RESOURCE_EXHAUSTED if a server has no memory for copies;
 * DEADLINE_EXCEEDED if the steps do not end. */
CH_MUST_CHECK ch_status ch__cut_take(ch_strategy *st, ch_cut_marks marks, ch_between_fn between,
                                     void *arg, ch_cut **out);
/* A cut in two parts, for callers whose own state goes on while the steps of the cut end:
 *
 *     ... capture the state; then
 *     is_prepared = ch__cut_prepare(st); // later steps are held back; schedule them
 *     ... between later steps:
 *     if (ch__cut_is_prepared(st, &is_ready) && is_ready)
 *         rc = ch__cut_take_prepared(st, marks, between, arg, &cut); // has these steps
 *
 * So workers find a full queue when the cut has been taken. The cut is given up if a thread
 * waits for the steps that it holds back (a join, or a full queue), if a step has failed, or if
 * another cut is taken. Then ch__cut_take_prepared returns FAILED_PRECONDITION. ch__cut_prepare
 * returns false if a cut is being made. */
bool                    ch__cut_prepare(ch_strategy *st);
bool                    ch__cut_is_prepared(ch_strategy *st, bool *is_ready);
void                    ch__cut_give_up_prepared(ch_strategy *st);
CH_MUST_CHECK ch_status ch__cut_take_prepared(ch_strategy *st, ch_cut_marks marks,
                                              ch_between_fn between, void *arg, ch_cut **out);
/* Takes a snapshot at once, whatever runs, to put variables back if a restore fails. The memory
 * of copies is not prepared. */
CH_MUST_CHECK ch_status ch__cut_take_now(ch_strategy *st, ch_cut **out);
/* Releases the snapshot. Does not block. NULL is allowed. */
void ch__cut_end(ch_cut *c);

/* Reads a region of a variable from the snapshot to contiguous memory, in pieces of at most 64
 * MiB. NULL is the whole variable. `v` must be a variable of numbers on servers: whole,
 * divided, or a shard. A variable that was created after the cut has its current value. */
CH_MUST_CHECK ch_status ch__cut_read(const ch_cut *c, ch_var *v, const ch_region *region,
                                     void *to);
/* Reads n rows of a shard, or of a variable that is not divided, to contiguous memory, in the
 * order of ids, which count from the shard's first row. Reads pieces of at most 64 MiB, or of a
 * single row if that is larger. */
CH_MUST_CHECK ch_status ch__cut_read_rows(const ch_cut *c, ch_var *shard, int64_t n,
                                          const int64_t *ids, void *to);
/* Reads the marks of such a shard: a vector of u8 with a bit for each row
 * (tensor/row_marks.h). It is empty if all rows may have changed. For ch__changed_rows. */
CH_MUST_CHECK ch_status ch__cut_read_marks(const ch_cut *c, ch_var *shard, ch_tensor **out);
/* Returns the index of the server that holds a shard, or a variable that is not divided.
 * Returns -1 if no single server holds the variable: it is divided, per-worker, or of another
 * strategy. */
int ch__cut_server_of(const ch_var *shard);
/* Returns the number of servers of a strategy; 0: it has none. */
int ch__cut_count_servers(const ch_strategy *st);

/* Returns the number of runs of a function that are part of the cut: ch_function_runs without
 * the runs that are queued. Must be called by `between`. For a strategy without servers,
 * returns ch_function_runs. */
int64_t ch__cut_function_runs(ch_strategy *st, const ch_function *f);
/* Returns true if the program has scheduled only a part of a round of CH_SYNCHRONOUS. A cut may
 * then end the round early, so the values after it depend on when cuts are taken. A save that
 * is due should wait until this function returns false. */
bool ch__cut_divides_round(ch_strategy *st);
/* Frees the memory on servers that is kept for copies. Does not block. */
void ch__cut_free_memory(ch_strategy *st);
/* Sets the path of the newest checkpoint of the variables on servers. If a server is lost
 * later, the error names this checkpoint, from which the program can be started again. */
void ch__cut_name_checkpoint(ch_strategy *st, const char *path);
/* Ends marking on the servers and frees the marks. Does not block. */
void ch__cut_end_marks(ch_strategy *st);

/* ---- positions of per-worker datasets ---- */

/* Stores the state of a per-worker dataset as bytes, which the caller must free with ch__free:
 * the number of passes, and the positions of the newest pass if its iteration exists. `p` is
 * the dataset or an iteration of it. Must be called by `between`. INVALID_ARGUMENT: `p` is
 * neither. FAILED_PRECONDITION: steps that read it are running. */
CH_MUST_CHECK ch_status ch__per_worker_save(ch_per_worker *p, void **bytes, size_t *n);
/* A saved pass that can be continued. */
typedef struct ch_saved_pass ch_saved_pass;
/* Reads a saved pass, without any change of the dataset. The bytes are untrusted: DATA_LOSS if
 * they are not valid. The caller must drop or continue the result before `p` is freed. */
CH_MUST_CHECK ch_status ch__saved_pass_read(ch_per_worker *p, const void *bytes, size_t n,
                                            ch_saved_pass **out);
void                    ch__saved_pass_drop(ch_saved_pass *s); /* s may be NULL */
/* Continues a saved pass: in the newest iteration of the dataset if it exists, else in the
 * next. No step may have read that iteration. Later iterations begin new passes with the
 * numbers that follow. Drops s.
 *
 * The number of workers may have changed. The saved pass is finished in the parts in which it
 * began, each element once, and the next pass is divided anew. In rounds of CH_SYNCHRONOUS,
 * with the same number of workers, the next steps read the elements that they would have read
 * without the restore. */
void ch__saved_pass_continue(ch_saved_pass *s);

#endif
