/* job/server/private.h -- the state of a parameter server, for state.c and steps.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SERVER_PRIVATE_H
#define JOB_SERVER_PRIVATE_H

#include "base/map.h"
#include "job/server/state.h"
#include "job/server/values.h"

/* The results of an update that was applied; of an assign n is 0. */
typedef struct ch_applied {
    int        n;
    ch_tensor *result[];
} ch_applied;

/* An update of a round, which is applied when its step is settled. Created when the update
 * arrives, owned by the list in ch_server_state. Freed when it was applied or its step has
 * ended. */
typedef struct ch_deferred {
    struct ch_deferred *next;
    uint64_t            step, update; /* numbers of the step and of the update */
    uint32_t            sequence;
    int                 n;
    ch_tensor          *in[]; /* the inputs; referenced */
} ch_deferred;

/* A worker that was declared lost at least once. */
typedef struct ch_fence {
    struct ch_fence *next;
    uint64_t         oldest; /* oldest accepted registration */
    char             worker[];
} ch_fence;

struct ch_server_state {
    ch_values values;
    ch_map    updates; /* ch_server_update (state.c), by number */
    ch_map    applied; /* ch_applied, by step and sequence; of deferred updates too */
    /* Updates that were not applied yet, by step and then by sequence. */
    ch_deferred *deferred;
    /* Bytes of the remembered results, now and after the last scan (drop_if_large, steps.c). */
    int64_t   result_bytes, bytes_before;
    ch_fence *fences;
    /* All steps below `retired` have ended. `version` counts applied updates and assigns. */
    uint64_t  retired, version;
    uint64_t  below; /* of the steps below this number, only those in `live` have not ended */
    size_t    n_live;
    uint64_t *live;  /* rising */
    uint64_t  round; /* of the last hold, or of the last release */
    size_t    n_held;
    uint64_t *held;        /* steps of the hold, rising */
    ch_update_watch watch; /* for tests; NULL: none */
    void           *arg;   /* for the watch function */
};

/* Each returns CH_ABORTED if the server must reject an update (steps.c): the registration of
 * the worker is fenced; the step has ended; the step is held. */
CH_MUST_CHECK ch_status ch__server_check_fence(const ch_server_state  *s,
                                               const Cohort__PsUpdate *m);
CH_MUST_CHECK ch_status ch__server_check_step(const ch_server_state *s, uint64_t step);
CH_MUST_CHECK ch_status ch__server_check_hold(const ch_server_state *s, uint64_t step);
/* Returns CH_INVALID_ARGUMENT if a list of steps does not rise. */
CH_MUST_CHECK ch_status ch__server_check_rising(size_t n, const uint64_t *step);
/* Frees a deferred update, which must not be in the list. */
void ch__server_drop_deferred(ch_deferred *d);
/* Frees the record of an applied update. */
void ch__server_drop_applied(ch_server_state *s, ch_applied *a);

#endif
