/* job/coordinator.h -- the coordinator: which steps wait, who runs them, who is alive.
 *
 * The chief is a task (net/net.h) and a state machine as the others are. The program's threads speak to it in its turn, and
 * wait there: all functions below that may wait deliver its events meanwhile.
 *
 * What it sees to:
 *   1. A step has a number, larger than all before it, which it keeps in every attempt. It ends once: with results, with an
 *      error, or cancelled. A cancelled step has changed nothing (job/coordinator/cancel.c). Steps below `retired` have all ended, and no attempt of them is heard by a server any more.
 *   2. A worker has a life, counted here. One that does not answer, or that was started again, is given up: servers are told
 *      not to hear that life any more (a fence), and when all have said that they do not, its steps are run elsewhere.
 *   3. A step that reads data is given its elements (a lease) when it is first sent to a worker, and has the same ones in every
 *      attempt.
 *   4. A server that lost its memory, or does not answer, is the end of the job: every call says which it was.
 *   5. Nothing waits without bound: the queue is full at some length, and every call has a deadline.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_COORDINATOR_H
#define JOB_COORDINATOR_H

#include "cohort/coordinator.h"
#include "net/net.h"
#include "tensor/layout.h"

typedef struct ch_scheduled
    ch_scheduled; /* a step, from schedule until nobody wants its results */
typedef struct ch_worker_input
    ch_worker_input; /* what each worker has its own of: data, or values */

typedef struct ch_coord_options {
    int                    n_servers, n_workers;
    ch_coordinator_options how;
    /* In ns; 0: as usual. */
    int64_t tick;   /* between two questions to a task whether it is there; 100 ms */
    int     misses; /* that a worker may have of these in a row; 5 */
    int64_t
        silence; /* after which a server is taken for lost, which may take half of it to answer; 60 s */
    int64_t call;  /* that a call may take before it is made again, with twice as long; 2 s */
    int64_t retry; /* after which one that was lost is made again; 20 ms */
    int64_t step;  /* that an attempt of a step may take; as how.step_seconds says */
} ch_coord_options;

/* Starts it as task "chief/0". `opt` is copied. */
CH_MUST_CHECK ch_status ch__coord_start(ch_net *net, const ch_coord_options *opt,
                                        ch_task **out);
/* Waits until every server and at least one worker have answered. */
CH_MUST_CHECK ch_status ch__coord_connect(ch_task *coord);
/* From now on another worker, "worker/<n>", is asked too; returns its number, or -1 for want of memory. */
int ch__coord_add_worker(ch_task *coord);

/* How steps are run from now on. */
void ch__coord_set_options(ch_task *coord, const ch_coordinator_options *how);

/* ---- servers ---- */

/* A call to each of n servers, made again until it is answered: what is asked may be asked twice. References to the parcels are
 * taken over, the answers are the caller's; on an error there are none. */
CH_MUST_CHECK ch_status ch__coord_request(ch_task *coord, int n, const int *server,
                                          ch_message *const *message, ch_message **answer);
/* The same to one, for which nobody waits. */
void ch__coord_send(ch_task *coord, int server, ch_message *message);
/* Values for n variables, or for regions of them. */
typedef struct ch_assignment {
    int               n;
    const int        *server;   /* of each variable */
    const uint64_t   *variable; /* its number there */
    int               rank;     /* of the regions */
    const ch_region  *region;   /* NULL: whole variables */
    ch_tensor *const *value;    /* borrowed */
} ch_assignment;

/* Assigns the values, each once. */
CH_MUST_CHECK ch_status ch__coord_assign(ch_task *coord, const ch_assignment *a);
/* Numbers that were never given before, the first of n. */
uint64_t ch__coord_new_numbers(ch_task *coord, int n);

/* ---- steps ---- */

/* The numbers that a function's updates have on servers. */
typedef struct ch_updates {
    uint64_t first, n;
} ch_updates;

/* A variable of which each worker keeps its own, as a function uses it: it is the next of the route's last inputs if it is read, and of its
 * last results if it is written. */
typedef struct ch_per_worker_spec {
    uint64_t   number; /* of ch__coord_new_numbers */
    bool       is_read, is_written;
    ch_tensor *initial; /* borrowed; nobody changes it */
} ch_per_worker_spec;

/* An op that a function calls in one line of the program, where that is. */
typedef struct ch_recorded_op {
    const char *name;
    const void *caller;
} ch_recorded_op;

/* Describes a function to ch__coord_add_function, which copies it into a ch_coord_function. */
typedef struct ch_function_spec {
    const char               *name; /* for errors of its steps; copied */
    int                       n_ops, n_per_worker;
    ch_recorded_op           *op; /* lines of ops, for errors; taken over, on an error too */
    const ch_per_worker_spec *per_worker; /* borrowed */
    ch_updates                updates;
} ch_function_spec;

/* Adds a function. It is sent to a worker before the first step that runs there. The route is
 * bytes in a tensor, which is taken over. */
CH_MUST_CHECK ch_status ch__coord_add_function(ch_task *coord, const ch_function_spec *f,
                                               ch_tensor *plan, uint64_t *number);
/* Frees a function when the steps that use it have ended. */
void ch__coord_forget_function(ch_task *coord, uint64_t function);

/* What the workers have of a variable that each keeps, one for each of them, now; NULL of one that has none, since it has used it in no
 * step that ended, or was lost. The tensors and their list, which ch__free returns, are the caller's; they are not to be changed. */
CH_MUST_CHECK ch_status ch__coord_read_per_worker(ch_task *coord, uint64_t variable, int *n,
                                                  ch_tensor ***out);
/* No step uses it any more. */
void ch__coord_forget_per_worker(ch_task *coord, uint64_t variable);

typedef struct ch_step_request {
    uint64_t function;
    int64_t  number; /* for ch_step_number and random numbers */
    uint64_t seed, snapshot;
    /* For each input a tensor that replicas share, or one for each of them, one replica's after the other's. Behind
     * these n_shared tensors that all replicas share: the function's inputs behind those of feeds. */
    int                     n_in, n_inputs, n_shared;
    ch_tensor *const       *in; /* borrowed; each is referenced */
    int                     n_worker_inputs;
    ch_worker_input *const *input;
    bool is_own; /* who ordered it waits for it: its error is nobody else's affair */
} ch_step_request;

/* *out may be NULL: then nobody wants its results. Else an error that was there before is cleared and returned, after all that
 * was scheduled has been cancelled, this one too. */
CH_MUST_CHECK ch_status ch__coord_schedule(ch_task *coord, const ch_step_request *o,
                                           ch_scheduled **out);
/* Waits while more steps wait than keep the workers busy, so that no more are in memory; of own steps if `is_own`, else of
 * the others. */
CH_MUST_CHECK ch_status ch__coord_wait_for_room(ch_task *coord, bool is_own);

/* Limits of waits, in ms: 0 is as usual, any positive number is that, and this does not wait at all. */
enum { CH_AT_ONCE = -1 };

CH_MUST_CHECK ch_status ch__coord_join(ch_task *coord, int64_t limit_ms);
/* Cancels a step, or all that were scheduled if `s` is NULL, unless they have begun to change variables. Does not wait. */
void                    ch__coord_cancel(ch_task *coord, ch_scheduled *s);
CH_MUST_CHECK ch_status ch__coord_done(ch_task *coord, bool *out);
/* Its results, once it has ended; they are the step's. `function` is its function's name, for errors. */
CH_MUST_CHECK ch_status ch__coord_wait(ch_task *coord, ch_scheduled *s, const char *function,
                                       int64_t limit_ms, const ch_message **out);
uint64_t                ch__scheduled_number(const ch_scheduled *s);
bool                    ch__coord_has_ended(ch_task *coord, const ch_scheduled *s);
void                    ch__scheduled_unref(ch_scheduled *s);

/* ---- what each worker has ---- */

/* `width` tensors for each of n workers, which its replicas share, or so many for each of `copies` replicas: one worker's after the
 * other's, and of these one replica's after the other's. They are referenced. */
CH_MUST_CHECK ch_status ch__coord_input_values(ch_task *coord, int n, int copies, int width,
                                               ch_tensor *const *value, ch_worker_input **out);

/* Streams over descriptions that are bytes in tensors, which are taken over: one for each worker, by its number, or, if it is
 * shared, parts of one dataset, which are read by whoever has nothing else. An element has `width` components. */
CH_MUST_CHECK ch_status ch__coord_input_datasets(ch_task *coord, int n,
                                                 ch_tensor *const *dataset, int width,
                                                 int64_t pass, bool is_shared,
                                                 ch_worker_input **out);
/* Steps that were scheduled keep it until they end. NULL is fine. */
void ch__coord_input_unref(ch_task *coord, ch_worker_input *f);

/* ---- what is going on ---- */

void                    ch__coord_stats(ch_task *coord, ch_coordinator_stats *out);
CH_MUST_CHECK ch_status ch__coord_worker_stats(ch_task *coord, int worker,
                                               ch_worker_stats *out);
/* Keeps the values that variables have now, for steps that are ordered with this pin. */
CH_MUST_CHECK ch_status ch__coord_snapshot(ch_task *coord, uint64_t *snapshot);
void                    ch__coord_release_snapshot(ch_task *coord, uint64_t snapshot);

#endif
