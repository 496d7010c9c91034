/* job/server/state.h -- what a parameter server has: variables, graphs that change them, and which updates were applied.
 *
 * A store is told messages (proto/job.proto), decoded, with the tensors that came beside them. It knows no task, wire or clock,
 * and answers nobody.
 *
 *     rc = ch__server_state_update(s, m, n, in);              // applies what was not applied yet
 *     if (rc == CH_OK)
 *         n = ch__server_state_results(s, m, counts, tensors);  // for the answer
 *     ch__server_state_retire(s, m->retired);                 // last: what a step was given goes with it
 *
 *   1. Its messages are a log: nothing else changes it, and two stores that are told the same ones in the same order hold the
 *      same bits, whoever reads from them meanwhile. (One that failed for want of memory has yet to be told.)
 *   2. An update is applied once. (step, sequence) is remembered, with what it gave, until the step has ended; another attempt
 *      changes nothing, and is given what the first was. What a step assigns is remembered likewise.
 *   3. Steps that have ended are refused: what comes late changes nothing. Those are the steps below the retired one, and those
 *      above it that are said to have ended, as steps beside a slow one. What is remembered is that of steps that have not.
 *   4. A hold settles whether a step was applied here: its updates are refused from then on, until the hold is released.
 *   5. A worker that was given up is fenced: updates of its earlier lives are refused from then on.
 *   6. What fails has changed nothing, whether it was refused or there was no memory. Of several updates in a message this is
 *      true of each: those before one that fails stay applied, and another attempt does the rest.
 *   7. What is given is never changed, and a pin keeps the values of its moment: job/server/values.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SERVER_STATE_H
#define JOB_SERVER_STATE_H

#include "cohort/device.h"
#include "cohort/tensor.h"
#include "job/job.pb-c.h"

typedef struct ch_server_state ch_server_state;

/* The device is kept, and nobody else's: graphs run there, on the thread that calls. A variable that is made here (PsFirst) has at most so many
 * bytes; 0: any number. */
CH_MUST_CHECK ch_status ch__server_state_new(ch_device *device, int64_t most_bytes,
                                             ch_server_state **out);
void                    ch__server_state_free(
                       ch_server_state *s); /* NULL is fine; what others have stays theirs */

/* For tests: told of each update when it is applied. */
typedef void (*ch_update_watch)(void *arg, const char *worker, uint64_t registration,
                                uint64_t step, uint32_t sequence);
void ch__server_state_watch(ch_server_state *s, ch_update_watch saw,
                            void *arg); /* NULL: nobody looks */

/* ---- what changes it ---- */

/* Tensors beside a message are borrowed, and not trusted, as the message is not. Variables, graphs and pins that come twice are
 * there once. */
CH_MUST_CHECK ch_status ch__server_state_create(ch_server_state *s, const Cohort__PsCreate *m,
                                                int n, ch_tensor *const *value);
CH_MUST_CHECK ch_status ch__server_state_define(ch_server_state *s, const Cohort__PsDefine *m);
/* Graphs over a variable end with it. */
void ch__server_state_remove(ch_server_state *s, const Cohort__PsFree *m);

CH_MUST_CHECK ch_status ch__server_state_update(ch_server_state *s, const Cohort__PsUpdate *m,
                                                int n, ch_tensor *const *in);
/* Of all its variables, or of none; once for a step, as an update is. */
CH_MUST_CHECK ch_status ch__server_state_assign(ch_server_state *s, const Cohort__PsAssign *m,
                                                int n, ch_tensor *const *value);
/* No step below this one comes again. Whoever tells a message that says so tells this, when it has been answered. */
void ch__server_state_retire(ch_server_state *s, uint64_t below);
/* Of steps below this one, only those n come again, which rise. What was said before stays true. */
CH_MUST_CHECK ch_status ch__server_state_live(ch_server_state *s, uint64_t below, size_t n,
                                              const uint64_t *live);

/* Refuses updates of these steps until the hold is released or replaced by one of a later round. Writes the steps of which an
 * update was applied before to `begun`, which has room for all of them, and their number to `n_begun`. A hold of a round
 * that was released or replaced changes nothing. */
CH_MUST_CHECK ch_status ch__server_state_hold(ch_server_state *s, const Cohort__PsHold *m,
                                              uint64_t *begun, size_t *n_begun);
/* Ends the holds of this round and of those before it. */
void ch__server_state_release(ch_server_state *s, uint64_t round);

CH_MUST_CHECK ch_status ch__server_state_fence(ch_server_state *s, const Cohort__PsFence *m);
CH_MUST_CHECK ch_status
ch__server_state_snapshot(ch_server_state *s, const Cohort__PsSnapshot *m); /* or releases it */

/* ---- what it gives ---- */

/* Values, and rows by ids, of as many variables as the message has; the caller's. On an error there are none. */
CH_MUST_CHECK ch_status ch__server_state_read(const ch_server_state *s, const Cohort__PsRead *m,
                                              ch_tensor **out);
CH_MUST_CHECK ch_status ch__server_state_rows(ch_server_state *s, const Cohort__PsRows *m,
                                              int n, ch_tensor *const *ids, ch_tensor **out);
/* Of a message that ch__server_state_update has just taken: returns how many tensors its updates gave, now or when they came first. `count`
 * is how many each of them gave, `out` the tensors, which are the caller's; NULL: not asked. */
int ch__server_state_results(const ch_server_state *s, const Cohort__PsUpdate *m,
                             uint32_t *count, ch_tensor **out);
/* Updates and assigns that were ever applied. */
uint64_t ch__server_state_version(const ch_server_state *s);

#endif
