/* job/server/state.h -- the state of a parameter server: variables and applied updates.
 *
 * The state is changed by decoded messages (proto/job.proto) and the tensors that came with
 * them. It uses no task, connection or clock. It sends nothing: server.c calls it and replies.
 *
 *     rc = ch__server_state_update(s, m, n, in); // applies what was not applied before
 *     if (rc == CH_OK)
 *         n = ch__server_state_results(s, m, counts, tensors); // for the reply
 *     ch__server_state_retire(s, m->retired); // last, because it may drop the results
 *
 * Invariants:
 *   1. The messages are a log. Nothing else changes the state: two states that process the same
 *      messages in the same order hold the same bits, regardless of reads in between. (A
 *      message that failed because memory was exhausted does not count; it must be processed
 *      again.)
 *   2. An update is applied once. The state remembers (step, sequence) and the results until
 *      the step has ended. If the update arrives again, from the same or another attempt, it
 *      changes nothing and returns the remembered results. The same holds for an assign.
 *   3. Updates of steps that have ended are rejected, so a late message changes nothing. A step
 *      has ended if its number is below `retired`, or if it is below `below` and not in the
 *      list of live steps (PsPing). The list covers steps that end earlier than a slow older
 *      step. The state remembers applied updates of live steps only.
 *   4. A hold fixes whether a step has been applied here: from the hold on, updates of the step
 *      are rejected until the hold is released.
 *   5. A fence rejects updates of a lost worker: from the fence on, updates with a registration
 *      older than the oldest accepted registration are rejected.
 *   6. An update that fails, for whatever reason, has changed nothing. If a message has several
 *      updates, the updates before the failed one stay applied, and the next attempt does the
 *      rest.
 *   7. Deferred updates count as applied in 2 to 5: they are accepted once, and nothing rejects
 *      them afterwards. They change variables when their step is settled, in the order of steps
 *      and sequence numbers, whatever the order of arrival. Those of a step that ends without
 *      being settled are dropped.
 *   8. A tensor that was returned to a caller is never changed, and a snapshot keeps the values
 *      of its moment (job/server/values.h).
 *
 * Messages and tensors are untrusted. One thread at a time may use a state.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SERVER_STATE_H
#define JOB_SERVER_STATE_H

#include "cohort/device.h"
#include "cohort/tensor.h"
#include "job/job.pb-c.h"

typedef struct ch_server_state ch_server_state;

/* Creates an empty state. Graphs run on `device`, on the thread that calls. The device is
 * borrowed, must outlive the state, and must not be used by others. A variable whose initial
 * value is computed here (PsInit) has at most `max_init_bytes` bytes; 0: no limit. */
CH_MUST_CHECK ch_status ch__server_state_new(ch_device *device, int64_t max_init_bytes,
                                             ch_server_state **out);
/* Frees the state. NULL is allowed. Tensors that were returned stay valid. */
void ch__server_state_free(ch_server_state *s);

/* For tests: called after each update that was applied. */
typedef void (*ch_update_watch)(void *arg, const char *worker, uint64_t registration,
                                uint64_t step, uint32_t sequence);
/* Sets the function that is called after each applied update; NULL: none. */
void ch__server_state_watch(ch_server_state *s, ch_update_watch watch, void *arg);

/* ---- messages that change the state ---- */

/* The n tensors of a message are borrowed. A variable, graph or snapshot that exists already is
 * left unchanged, because a call may arrive twice. */

/* Creates a variable with value[0], or, if the message has an init, with a value that is
 * computed here; then n must be 0. */
CH_MUST_CHECK ch_status ch__server_state_create(ch_server_state *s, const Cohort__PsCreate *m,
                                                int n, ch_tensor *const *value);
/* Defines an update: a graph over variables. */
CH_MUST_CHECK ch_status ch__server_state_define(ch_server_state *s, const Cohort__PsDefine *m);
/* Removes variables, the updates that use them, and the listed updates. Ignores numbers
 * that do not exist. */
void ch__server_state_remove(ch_server_state *s, const Cohort__PsFree *m);

/* Applies the updates of a message that were not applied before, in order. Checks the whole
 * message first, and applies nothing if a check fails: ABORTED if the registration is fenced,
 * the step has ended or the step is held; NOT_FOUND if an update was not defined;
 * INVALID_ARGUMENT if the number of inputs is wrong. If a graph fails, the updates before it
 * stay applied.
 *
 * If the message says `defer`, keeps the updates, with references to the tensors, until the
 * step is settled. INVALID_ARGUMENT if such an update has results. */
CH_MUST_CHECK ch_status ch__server_state_update(ch_server_state *s, const Cohort__PsUpdate *m,
                                                int n, ch_tensor *const *in);
/* Applies the deferred updates of the listed steps, by step and then by sequence. Ignores steps
 * that have no such update, because a call may arrive twice. If an update fails, stops before
 * it, writes its step to *failed and returns the error; a repeated call fails in the same way.
 * Otherwise *failed is 0. */
CH_MUST_CHECK ch_status ch__server_state_settle(ch_server_state *s, const Cohort__PsSettle *m,
                                                uint64_t *failed);
/* Sets the variables of a message: all of them, or on an error none. A second assign of the
 * same step changes nothing. Returns ABORTED if the step has ended. */
CH_MUST_CHECK ch_status ch__server_state_assign(ch_server_state *s, const Cohort__PsAssign *m,
                                                int n, ch_tensor *const *value);
/* Retires all steps below `below`: they have ended, and their updates are rejected from now on.
 * Must be called for every message with a `retired` field, after its results were read. */
void ch__server_state_retire(ch_server_state *s, uint64_t below);
/* Declares that of the steps below `below` only the n steps of `live` have not ended. The list
 * must rise. A step that has ended does not become live again. A `below` of 0 has no effect. */
CH_MUST_CHECK ch_status ch__server_state_live(ch_server_state *s, uint64_t below, size_t n,
                                              const uint64_t *live);

/* Rejects updates of the listed steps until the hold is released or replaced by a hold of a
 * later round. Writes the steps of which an update was applied before to `begun`, which must
 * have room for all listed steps, and their number to *n_begun. A hold of a round that was
 * released or replaced holds nothing, but still writes `begun`. */
CH_MUST_CHECK ch_status ch__server_state_hold(ch_server_state *s, const Cohort__PsHold *m,
                                              uint64_t *begun, size_t *n_begun);
/* Releases the holds of this round and of earlier rounds. */
void ch__server_state_release(ch_server_state *s, uint64_t round);

/* Rejects updates of a worker with a registration older than that of the message, from now on.
 * An older fence of the same worker does not replace a newer fence. */
CH_MUST_CHECK ch_status ch__server_state_fence(ch_server_state *s, const Cohort__PsFence *m);
/* Takes a snapshot of all variables, or releases it and all older ones except those that the
 * message names. */
CH_MUST_CHECK ch_status ch__server_state_snapshot(ch_server_state          *s,
                                                  const Cohort__PsSnapshot *m);
/* Prepares spare memory for copies of the variables, or frees it, as the message says. Writes
 * the number of bytes that are not prepared yet to *left. */
CH_MUST_CHECK ch_status ch__server_state_reserve(ch_server_state *s, const Cohort__PsReserve *m,
                                                 uint64_t *left);

/* ---- reading ---- */

/* Reads the variables of a message, or regions of them. Writes one tensor per variable to
 * `out`; the caller must unref them. On an error it writes no tensors. */
CH_MUST_CHECK ch_status ch__server_state_read(const ch_server_state *s, const Cohort__PsRead *m,
                                              ch_tensor **out);
/* Reads rows by ids, ids[i] for variable i of the message, as ch__server_state_read does. */
CH_MUST_CHECK ch_status ch__server_state_rows(ch_server_state *s, const Cohort__PsRows *m,
                                              int n, ch_tensor *const *ids, ch_tensor **out);
/* Returns the number of result tensors of a message that ch__server_state_update has just
 * accepted, from this or an earlier application. Writes the number of results of each update to
 * `count`, and the tensors, which the caller must unref, to `out`. Both may be NULL. */
int ch__server_state_results(const ch_server_state *s, const Cohort__PsUpdate *m,
                             uint32_t *count, ch_tensor **out);
/* Returns the number of updates and assigns that were ever applied. */
uint64_t ch__server_state_version(const ch_server_state *s);

#endif
