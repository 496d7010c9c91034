/* fit/training.h -- the state of a running training, as callbacks read it.
 *
 * The loops (fit/loop.h) write a ch_training after each step and epoch; callbacks read it with
 * the functions of cohort/callback.h. It is the only record of the course of a training: all of
 * fit/report/ shows or writes its values. Everything runs on the thread of the loop.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_TRAINING_H
#define FIT_TRAINING_H

#include "cohort/callback.h"
#include "cohort/function.h"

/* Numbers by name, in the order in which they were added. All zeros is empty. */
typedef struct ch_logs {
    int n, capacity;
    struct ch_log_entry {
        char  *name;
        double value;
    } * at;
} ch_logs;

/* Sets the number of that name, or adds it. `name` is copied. */
ch_status ch__logs_set(ch_logs *l, const char *name, double value);
/* Returns the number of that name; NULL if there is none. Borrowed until the logs change. */
const double *ch__logs_find(const ch_logs *l, const char *name);
/* Returns the number of that name; NaN if there is none. */
double ch__logs_get(const ch_logs *l, const char *name);
void   ch__logs_drop(ch_logs *l);

/* Returns true if the log is of a validation: its name begins with "val_". */
bool ch__is_of_validation(const char *name);

/* The phases of an epoch. Between two steps of any phase the training can be saved, and
 * continued from there. */
typedef enum ch_phase {
    CH_PHASE_BEGIN,      /* the epoch has not begun */
    CH_PHASE_STEPS,      /* CH_ON_EPOCH_BEGIN was sent; steps run */
    CH_PHASE_TRAINED,    /* all steps have run, and the logs of the epoch were read */
    CH_PHASE_VALIDATING, /* CH_ON_VALIDATION_BEGIN was sent; steps of the validation run */
    CH_PHASE_ENDED       /* CH_ON_EPOCH_END was sent */
} ch_phase;

struct ch_training {
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_function  *function; /* training step; NULL: not known */
    bool          is_evaluation;
    int           epoch, epochs; /* current epoch, from 0; planned epochs, 0: not known */
    ch_phase      phase;         /* of the current epoch; not used in an evaluation */
    const char   *epoch_name;    /* name of an epoch in the progress line; NULL: "Epoch" */
    /* Steps done in the call and in this epoch; steps that an epoch has, CH_UNKNOWN until the
     * end of the first epoch if the data does not say it. */
    int64_t step, epoch_step, epoch_steps;
    int64_t examples, epoch_examples;
    int64_t began_ns, epoch_began_ns; /* times of ch__now_ns */
    bool    is_validating;            /* in a validation, or in ch_evaluate or ch_predict */
    int64_t validation_step, validation_steps;
    int64_t validation_rows; /* rows of this validation so far */

    ch_logs logs;
    /* Steps have run since the logs were read; `refresh` must read them again. */
    bool is_stale;
    /* Reads the metrics into the logs. NULL: the logs do not change. */
    ch_status (*refresh)(ch_training *t);
    /* Blocks until no step is in flight. NULL: the steps are synchronous. */
    ch_status (*drain)(ch_training *t);
    /* The callback that runs now reads the logs without a drain (rule 3 of fit/inflight.h). */
    bool peeks;
    /* The logs were read without a drain, so they are stale for other callbacks. */
    bool is_peeked;

    /* Saves of this call, and saves that were skipped (ch_time_table). */
    int64_t n_saves, n_skipped_saves;

    bool stops;  /* ch_training_stop was called */
    bool pauses; /* ch__training_pause stopped the training */
    /* Calls of ch_training_stop; a validation stops if there is a call while it runs. */
    int  n_stop_requests;
    char why[160]; /* reason of the first call of ch_training_stop */
};

/* Returns the logs, borrowed until the next step. Reads the metrics first if steps have run.
 * The same as ch_training_logs, _log_name and _log together. */
const ch_logs *ch__training_logs(ch_training *t);
/* Blocks until no step is in flight. Must be called before code reads the effects of steps.
 * Returns the error of the first step that failed. */
ch_status ch__training_drain(ch_training *t);

/* Stops the training as ch_training_stop does, but not for good: if its state was saved, the
 * next program goes on with the steps. Does nothing but ch_training_stop if the training stops
 * already. */
void ch__training_pause(ch_training *t, const char *why);

/* Save points: events for callbacks that save the training, which only callbacks of the library
 * may handle. At a save point all callbacks have handled the event before, and the training is
 * between two steps. With parameter servers, steps may be in flight: a callback that saves must
 * drain first, or capture the state (fit/resume.h). The first save point after
 * ch__training_pause comes before anything that the pause cuts short, so its state is the one
 * to be saved. */
enum {
    CH_SAVE_POINT_BEGIN = CH_ON_END << 1, /* before the first epoch: a state may be loaded */
    CH_SAVE_POINT_STEP = CH_ON_END << 2,  /* between steps, also of a validation */
    CH_SAVE_POINT_EPOCH = CH_ON_END << 3, /* after CH_ON_EPOCH_END */
    CH_SAVE_POINT_END = CH_ON_END << 4    /* before CH_ON_END, unless the training failed */
};

/* Sends an event to n callbacks, in the order of the list. The first error ends it, except for
 * CH_ON_END: all callbacks get this event, and the first error is returned. */
ch_status ch__callbacks_notify(int n, ch_callback *const *c, ch_training *t, ch_event event);

/* Returns true if `value` is better than `best` by more than `delta`. `goal` says whether less
 * or more is better; CH_GOAL_AUTO decides by `name`. NaN is never better. */
bool ch__is_better(const char *name, ch_goal goal, double value, double best, double delta);
/* Returns the infinity that every finite value is better than. */
double ch__worst(const char *name, ch_goal goal);

#endif
