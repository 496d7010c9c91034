/* job/coordinator.h -- the coordinator task: schedules steps on workers, survives lost workers.
 *
 * The coordinator is the task "chief/0" (net/net.h). It keeps the queue of scheduled steps, a
 * table of workers and a table of parameter servers. The strategy (src/strategy/) calls the
 * functions below from the program's threads. Each function locks the task (ch__task_enter)
 * while it runs. A function that blocks delivers the task's events while it waits.
 *
 * Two numbers must not be confused. net/ gives a task a larger incarnation each time the task
 * is started. The coordinator gives a worker a larger registration each time it declares the
 * worker lost, even if the worker is still alive. Registrations begin at 1.
 *
 * How a step runs (RUN, READ and so on are methods of job/message.h):
 *   1. Schedule. ch__coord_schedule gives the step a number and adds it to the queue.
 *   2. Send. The coordinator takes the first step of the queue and the worker with the fewest
 *      steps. If the worker does not have the step function (an encoded step plan,
 *      job/step_plan.h) or the data streams, the coordinator sends these first (FUNCTION,
 *      STREAM). Then it leases the elements that the step reads: it reserves their numbers in
 *      the stream for this step, until the step ends. Then it calls RUN with the step's number,
 *      inputs and elements, and with the worker's registration. This call is an attempt of the
 *      step.
 *   3. Run. The worker runs its attempts one after the other (job/worker.h). It reads variables
 *      from servers (READ, ROWS), computes the local parts of the plan, and sends updates
 *      (UPDATE). It repeats a call for up to ch_worker_options.patience_ns. If the server has
 *      not replied by then, the worker hands the step back, and the coordinator queues it
 *      again.
 *   4. Apply. A server applies each update once. It records (step, sequence) with the results,
 *      and answers a repeated update from this record. A server rejects the updates of a fenced
 *      registration, of a step that has ended, and of a step that is held because it is being
 *      cancelled. In rounds of CH_SYNCHRONOUS a server keeps the updates, and applies them in
 *      the order of the steps when the coordinator calls SETTLE (job/coordinator/settle.c).
 *   5. Acknowledge. The worker replies to RUN with the results, or with an error. The step has
 *      then ended (in rounds, when it is settled), and ch__coord_wait returns the results or
 *      the error. A step does not end if the worker hands it back, or if its worker is being
 *      fenced and replies with an error. If a step fails, the next schedule, join or done
 *      cancels the other steps and returns the error.
 *   6. Retire. All steps below the number `retired` have ended. RUN, UPDATE, ASSIGN and PING
 *      carry this number. Servers then reject these steps and free their records of them. A
 *      step whose reply was lost has not ended, so its records are kept.
 *
 * If the worker dies in the middle:
 *   7. Notice. The coordinator pings every worker at each tick. It declares a worker lost if
 *      the worker does not reply for more than `misses` ticks, if the connection breaks, or if
 *      the worker was restarted and replies with another incarnation.
 *   8. Fence. It increments the worker's registration and calls FENCE on every server. Once a
 *      server has replied, it rejects all updates of the old registration.
 *   9. Repeat. When all servers have replied, the coordinator puts the worker's steps back into
 *      the queue. Each keeps its number, elements and seed. The new attempt sends all updates
 *      of the step; servers apply those that the first attempt did not. It reads the variables
 *      again, so it may compute from updates of the first attempt, unless it reads a snapshot.
 *      If the first attempt's reply to RUN arrives before the last FENCE reply, the step ends
 *      and is not repeated.
 *  10. Return. A lost worker that replies to a ping again receives steps under its new
 *      registration. It drops all runs of older registrations, and its per-worker variables
 *      have their initial values again.
 * If only a message of RUN was lost, the worker's replies to pings do not list the step. After
 * two such replies the coordinator makes a new attempt.
 *
 * A rejected update. The server replies CH_ABORTED (4). The worker does not repeat the call:
 * the run ends, and the worker replies to RUN with that error. The coordinator does not fail
 * the step, and the program never receives this error:
 *   - The registration is fenced. Errors of a worker that is being fenced are ignored, and when
 *     the fence is complete its calls are cancelled. The step is repeated (9).
 *   - The step has ended. Its calls were cancelled when it ended, so the reply is ignored.
 *   - The step is held. Errors of a held step are ignored. After the round the step is
 *     cancelled, or queued again if a server has applied an update of it.
 *
 * Per-worker variables. Every worker has its own copy, and a step reads and changes the copy of
 * the worker that runs it. The copy changes when the run finishes, once for each step and
 * registration: if the worker runs the step again, because its reply was lost, the copy does
 * not change again. If another worker takes the step over, the copy of that worker changes:
 *   - Repeated after a loss: the copy of the lost worker is reset to the initial value.
 *   - Stolen: the first worker drops the waiting run, and its copy does not change.
 *   - Backup: both workers run the step. The first reply ends the step, and the other attempt
 *     is cancelled.
 * If the other worker finishes before the cancellation arrives, both copies change. So a sum
 * over the copies may count a step twice that was stolen or had a backup.
 *
 * Waits. COHORT_WAIT_LIMIT_MS (default 600,000) limits every call that blocks; the call then
 * returns CH_DEADLINE_EXCEEDED. If the call waits for steps (schedule, wait_for_room, wait,
 * join, done), the time begins anew whenever a step ends, and while steps run the time limit of
 * a step (step_seconds) is added to it. The limit_ms of wait and join replaces all of this.
 *
 * Invariants:
 *   1. A step has a number, larger than the numbers of all steps before it. It keeps the number
 *      in every attempt. It ends once: done, failed or cancelled. A cancelled step has changed
 *      no variable on a server (job/coordinator/cancel.c).
 *   2. The steps of a lost worker are repeated only after every server has fenced the worker.
 *   3. A step reads the same elements in every attempt, and no other step reads them.
 *   4. If a server is lost or has lost its variables, the job has failed. From then on, calls
 *      that need a server return CH_UNAVAILABLE and name the lost server.
 *   5. Every queue is bounded, and every call has a deadline.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_COORDINATOR_H
#define JOB_COORDINATOR_H

#include "cohort/coordinator.h"
#include "job/job.pb-c.h"
#include "net/net.h"
#include "tensor/layout.h"

/* A scheduled step. Reference-counted: the coordinator holds a reference until the step has
 * ended, and the caller of ch__coord_schedule holds another if it asked for the results. */
typedef struct ch_scheduled ch_scheduled;
/* An input of steps that depends on the worker: a data stream, or tensors for each worker. */
typedef struct ch_worker_input ch_worker_input;

typedef struct ch_coord_options {
    int                    n_servers, n_workers;
    ch_coordinator_options how;
    /* Times are in ns. For each field 0 means the default. */
    int64_t tick; /* between two pings to a task; default 100 ms */
    /* A worker is declared lost after more than this number of ticks in a row without a reply;
     * default 5. While step functions or streams are being sent to the worker, the number is
     * larger. */
    int misses;
    /* A server is declared lost after this time without a reply; default 60 s. The deadline of
     * a ping to a server is half of this time. */
    int64_t silence;
    /* Timeout of the first attempt of a retried call; default 2 s. It doubles with each attempt
     * of a call that may be large (ch_method.may_be_large). */
    int64_t call;
    int64_t retry; /* pause before a lost call is repeated; default 20 ms */
    /* Time limit of a step on its worker. The coordinator sets this field from
     * how.step_seconds, or from COHORT_WAIT_LIMIT_MS if that is 0, and ignores the caller's
     * value. */
    int64_t step;
} ch_coord_options;

/* Starts the coordinator as task "chief/0". Copies `opt`. */
CH_MUST_CHECK ch_status ch__coord_start(ch_net *net, const ch_coord_options *opt,
                                        ch_task **out);
/* Blocks until every server and at least one worker have replied to a ping. After
 * COHORT_WAIT_LIMIT_MS returns CH_DEADLINE_EXCEEDED and names the tasks that have not
 * replied. */
CH_MUST_CHECK ch_status ch__coord_connect(ch_task *coord);
/* Adds task "worker/<n>" to the worker table. Returns its index n, -1 if memory is exhausted,
 * or 0 if the coordinator has ended. */
int ch__coord_add_worker(ch_task *coord);

/* Sets the options of all steps that have not been sent yet. Copies `how`. */
void ch__coord_set_options(ch_task *coord, const ch_coordinator_options *how);

/* ---- servers ---- */

/* Calls n servers and blocks until all have replied. Repeats a call until the server replies,
 * so a message may arrive twice and must then change nothing more. Takes over the references to
 * the messages, on an error too. The caller must unref the replies; on an error there are none.
 * `reply` may be NULL if the replies are not needed. */
CH_MUST_CHECK ch_status ch__coord_request(ch_task *coord, int n, const int *server,
                                          ch_message *const *message, ch_message **reply);
/* Calls a server like ch__coord_request, but does not wait for the reply. Takes over the
 * reference to the message. Errors are ignored. */
void ch__coord_send(ch_task *coord, int server, ch_message *message);
/* Values for n variables, or for a region of each. */
typedef struct ch_assignment {
    int               n;
    const int        *server;   /* index of each variable's server */
    const uint64_t   *variable; /* number of each variable on its server */
    int               rank;     /* of the regions */
    const ch_region  *region;   /* of each variable; NULL: whole variables */
    ch_tensor *const *value;    /* borrowed */
} ch_assignment;

/* Assigns the values and blocks until every server has replied. The assignment has a step
 * number of its own, so a server applies it once, even if the message arrives several times. */
CH_MUST_CHECK ch_status ch__coord_assign(ch_task *coord, const ch_assignment *a);
/* Reserves n consecutive numbers that were never used before. Returns the first. */
uint64_t ch__coord_new_numbers(ch_task *coord, int n);

/* ---- steps ---- */

/* The numbers on servers of the updates of a step function: n numbers from `first` on. */
typedef struct ch_updates {
    uint64_t first, n;
} ch_updates;

/* How a step function uses a per-worker variable. The variables that are read are the last
 * inputs of the step plan, those that are written are its last results, both in the order of
 * the list. */
typedef struct ch_per_worker_spec {
    uint64_t   number; /* of ch__coord_new_numbers */
    bool       is_read, is_written;
    ch_tensor *initial; /* borrowed; must not be changed afterwards */
} ch_per_worker_spec;

/* An op of a step function and the program line that records it, for error messages. */
typedef struct ch_recorded_op {
    const char *name;
    const void *caller; /* return address into the program; NULL: several lines record the op */
} ch_recorded_op;

/* Describes a step function to ch__coord_add_function. */
typedef struct ch_function_spec {
    const char *name; /* for error messages; copied */
    int         n_ops, n_per_worker;
    /* From ch__calloc, or NULL. ch__coord_add_function takes it over, on an error too. */
    ch_recorded_op           *op;
    const ch_per_worker_spec *per_worker; /* borrowed */
    ch_updates                updates;
    bool                      has_results; /* an update returns results to the worker */
} ch_function_spec;

/* Adds a step function and sets *number. A worker receives it before the first step that uses
 * it there. `plan` is an encoded step plan as a tensor of bytes; takes the reference over,
 * on an error too. */
CH_MUST_CHECK ch_status ch__coord_add_function(ch_task *coord, const ch_function_spec *f,
                                               ch_tensor *plan, uint64_t *number);
/* Frees a step function on all tasks when the steps that use it have ended. Does not block. */
void ch__coord_forget_function(ch_task *coord, uint64_t function);

/* Reads the current copies of a per-worker variable. Blocks until the workers that are ready
 * have replied. Sets *n to the number of workers, and *out to a list with a tensor for each.
 * The tensor is NULL if the worker is not ready, or has received no step function that uses the
 * variable. The caller must unref the tensors and free the list with ch__free. It must not
 * change the tensors. */
CH_MUST_CHECK ch_status ch__coord_read_per_worker(ch_task *coord, uint64_t variable, int *n,
                                                  ch_tensor ***out);
/* Frees the copies of a per-worker variable on all workers. No step may use it afterwards. */
void ch__coord_forget_per_worker(ch_task *coord, uint64_t variable);

typedef struct ch_step_request {
    uint64_t function; /* number of the step function */
    int64_t  number;   /* for ch_step_number and random numbers */
    /* Seed of random numbers; snapshot of the variables that the step reads, 0 for their
     * current values. */
    uint64_t seed, snapshot;
    /* The tensors of `in`, in this order:
     *   - n_inputs tensors that all replicas share; or, if n_in - n_shared > n_inputs, n_inputs
     *     tensors for each replica, replica by replica;
     *   - n_shared tensors that all replicas share. They are the last inputs of the step plan,
     *     after the worker inputs. */
    int                     n_in, n_inputs, n_shared;
    ch_tensor *const       *in; /* borrowed; each tensor is referenced */
    int                     n_worker_inputs;
    ch_worker_input *const *input; /* borrowed; each is referenced */
    /* The caller waits for this step. The step is queued before all others and is never
     * cancelled. Only ch__coord_wait of this step returns its error. */
    bool        is_own;
    const void *owner; /* for ch__coord_count_queued; compared only */
} ch_step_request;

/* Adds a step to the queue. If `out` is NULL, the worker does not send the results. Otherwise
 * the caller must unref *out.
 *
 * Unless the step is own, blocks while the queue is full or another thread joins. If an earlier
 * step has failed, the call cancels all scheduled steps, waits until they have ended, clears
 * the error and returns it. This step then counts as cancelled and is not scheduled. An own
 * step does none of this. */
CH_MUST_CHECK ch_status ch__coord_schedule(ch_task *coord, const ch_step_request *o,
                                           ch_scheduled **out);
/* Blocks while more steps are queued than keep the workers busy, so that a program that
 * produces steps faster than workers run them uses little memory. Counts own steps if `is_own`
 * is true, else the other steps. If a step has failed, returns CH_OK; a later call returns the
 * error. */
CH_MUST_CHECK ch_status ch__coord_wait_for_room(ch_task *coord, bool is_own);

/* A limit in ms is positive, 0 for the default, or CH_NO_WAIT for a call that must not wait.
 * With the default a wait fails only if no step has ended for COHORT_WAIT_LIMIT_MS; while steps
 * run, the time limit of a step is added to that. */
enum { CH_NO_WAIT = -1 };

/* Blocks until all scheduled steps have ended. Returns the first error of a step that is not
 * own, once, after all other steps have been cancelled. Returns CH_DEADLINE_EXCEEDED at the
 * limit. */
CH_MUST_CHECK ch_status ch__coord_join(ch_task *coord, int64_t limit_ms);
/* Cancels a step, or all scheduled steps if `s` is NULL, except own steps and steps of which a
 * server has applied an update. Does not block. */
void ch__coord_cancel(ch_task *coord, ch_scheduled *s);
/* Sets *out to true if no step is queued or running. Returns an error of a step like join. */
CH_MUST_CHECK ch_status ch__coord_done(ch_task *coord, bool *out);
/* Blocks until the step has ended. Returns its error, CH_CANCELLED, or CH_OK and its results.
 * The step owns the results. `function` is the name of the step function, for messages. */
CH_MUST_CHECK ch_status ch__coord_wait(ch_task *coord, ch_scheduled *s, const char *function,
                                       int64_t limit_ms, const ch_message **out);
/* Returns the number of a step, from 1 on. */
uint64_t ch__scheduled_number(const ch_scheduled *s);
/* Returns true if the step is done, failed or cancelled. */
bool ch__coord_has_ended(ch_task *coord, const ch_scheduled *s);
/* Releases a reference. NULL is allowed. Any thread may call it, without the task's lock. */
void ch__scheduled_unref(ch_scheduled *s);

/* ---- worker inputs ---- */

/* Creates a worker input of fixed tensors: `width` tensors for each of `copies` replicas of
 * each of n workers, worker by worker and then replica by replica. If `copies` is 1, the
 * replicas of a worker share them. Worker i reads the tensors of worker i % n. References the
 * tensors. */
CH_MUST_CHECK ch_status ch__coord_input_values(ch_task *coord, int n, int copies, int width,
                                               ch_tensor *const *value, ch_worker_input **out);

/* Creates a worker input of n data streams. Each `dataset` is an encoded dataset as a tensor of
 * bytes, and is referenced. An element has `width` components. `pass` is the number of the pass
 * over the data, for random numbers.
 *
 * If `is_shared` is false, worker i reads stream i % n. If it is true, the streams are parts of
 * a single dataset. A worker whose own stream has ended then reads from the others. */
CH_MUST_CHECK ch_status ch__coord_input_datasets(ch_task *coord, int n,
                                                 ch_tensor *const *dataset, int width,
                                                 int64_t pass, bool is_shared,
                                                 ch_worker_input **out);
/* Packs the state of a pass over data streams as a PassState (proto/job.proto), which the
 * caller must free with ch__free. with_datasets: also the encoded datasets. Must be called
 * between steps (ch__coord_cut): CH_FAILED_PRECONDITION if a step that reads the input runs. */
CH_MUST_CHECK ch_status ch__coord_input_save(ch_task *coord, const ch_worker_input *f,
                                             bool with_datasets, void **bytes, size_t *n);
/* Creates a worker input that continues a saved pass: like ch__coord_input_datasets, with a
 * dataset for each saved stream. `m` is untrusted: CH_DATA_LOSS if it is not valid. */
CH_MUST_CHECK ch_status ch__coord_input_resume(ch_task *coord, const Cohort__PassState *m,
                                               ch_tensor *const *dataset, int width,
                                               bool is_shared, ch_worker_input **out);
/* Adds a reference. Must be called with the task's lock held (ch__task_enter). */
void ch__coord_input_ref(ch_worker_input *f);
/* Releases the caller's reference. Scheduled steps keep references until they end. NULL is
 * allowed. */
void ch__coord_input_unref(ch_task *coord, ch_worker_input *f);

/* ---- statistics ---- */

void ch__coord_stats(ch_task *coord, ch_coordinator_stats *out);
/* Returns CH_INVALID_ARGUMENT if there is no worker of this index. */
CH_MUST_CHECK ch_status ch__coord_worker_stats(ch_task *coord, int worker,
                                               ch_worker_stats *out);

/* ---- snapshots ---- */

/* Takes a snapshot of all variables on servers, for steps that name it
 * (ch_step_request.snapshot). Blocks until every server has replied. CH_RESOURCE_EXHAUSTED: 64
 * snapshots are in use. */
CH_MUST_CHECK ch_status ch__coord_snapshot(ch_task *coord, uint64_t *snapshot);
/* Releases a snapshot. Does not block. */
void ch__coord_release_snapshot(ch_task *coord, uint64_t snapshot);

/* Takes a snapshot between steps (a cut): in it, every step and every assignment is complete or
 * absent. Steps that were sent to workers run to their end first, if need be on other workers.
 * Steps that were not sent are held back. Then calls `between`, which may be NULL, while no
 * step runs, and resumes the steps. `between` must not run steps and must not set variables.
 * If it returns an error, the snapshot is released.
 *
 * In rounds of CH_SYNCHRONOUS, a round that has begun runs to its end first. If the program has
 * scheduled only a part of it, the round ends with this part, as it does at a join.
 *
 * If begin_marks is true, the servers mark the rows that change from the snapshot on
 * (job/server/values.h). Snapshots keep the marks from before.
 *
 * Returns the error of a step if a step has failed; the next join returns it too. Returns
 * CH_DEADLINE_EXCEEDED like ch__coord_join. */
CH_MUST_CHECK ch_status ch__coord_cut(ch_task *coord, bool                   is_prepared,
                                      ch_status (*between)(void *arg), void *arg,
                                      bool begin_marks, uint64_t *snapshot);
/* Prepares a cut after the steps that are scheduled so far, for a caller that captures the rest
 * of its state now. These steps run to their end; steps that are scheduled later are held back
 * until ch__coord_cut takes the cut (is_prepared). So the queue is full when the cut has been
 * taken. The cut is given up if a thread waits for the steps that it holds back (join, or
 * schedule with a full queue), if a step has failed, or if another cut is taken; then
 * ch__coord_cut returns CH_FAILED_PRECONDITION. Returns false if a cut is being made. */
bool ch__coord_prepare_cut(ch_task *coord);
/* Returns true if a cut is prepared and was not given up. *is_ready: its steps have ended, so
 * that ch__coord_cut need not wait for steps. */
bool ch__coord_is_cut_prepared(ch_task *coord, bool *is_ready);
/* Gives a prepared cut up. Does nothing if there is none. */
void ch__coord_give_up_cut(ch_task *coord);
/* Returns true if the program has scheduled a part of a round of CH_SYNCHRONOUS, so that a cut
 * would end the round early. */
bool ch__coord_is_in_mid_round(ch_task *coord);
/* Returns the number of queued steps of an owner. Called by `between` of a cut: the number of
 * its steps that are absent from the snapshot. */
int64_t ch__coord_count_queued(ch_task *coord, const void *owner);
/* Prepares spare memory on the servers, so that the first write to a variable after a snapshot
 * costs a copy to memory that is ready (job/server/values.h). Blocks, but each server replies
 * to other calls meanwhile. The servers keep this memory until ch__coord_unreserve, which does
 * not block. */
CH_MUST_CHECK ch_status ch__coord_reserve(ch_task *coord);
void                    ch__coord_unreserve(ch_task *coord);
/* Ends the marking of changed rows on all servers. Does not block. A call that is lost is
 * repeated; one that arrives late may end marks that have begun since, which is harmless:
 * without marks all rows count as changed. */
void ch__coord_end_marks(ch_task *coord);
/* Sets the path of the newest checkpoint of the variables, which the error of a server that is
 * lost later names. Copies the path. If memory is exhausted, that error names none. */
void ch__coord_name_checkpoint(ch_task *coord, const char *path);

#endif
