/* cohort/callback.h -- callbacks: what is told of a training as it goes on, and may stop it.
 *
 *     ch_callback *stop = NULL;
 *     rc = ch_callback_early_stopping(&(ch_callback_early_stopping_options){.patience = 3, .restore_best = true}, &stop);
 *     rc = ch_fit(m, data, &(ch_fit_options){.n_callbacks = 1, .callback = &stop}, NULL);
 *     ch_callback_unref(stop);
 *
 * A callback of one's own is a table of two functions and a state. Callbacks are called by the
 * thread that calls ch_fit, in their order, between steps. One that fails ends the training
 * with its error, which says its name.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_CALLBACK_H
#define COHORT_CALLBACK_H

#include "cohort/history.h"
#include "cohort/model.h"
#include "cohort/optimizer.h"

/* ---- a training, as callbacks see it ---- */

typedef struct ch_training ch_training;

CH_API ch_model     *ch_training_model(const ch_training *t); /* borrowed, as all of these */
CH_API ch_optimizer *ch_training_optimizer(const ch_training *t); /* NULL: an evaluation */
/* ch_evaluate or ch_predict, by itself. */
CH_API bool    ch_training_is_evaluation(const ch_training *t);
CH_API int     ch_training_epoch(const ch_training *t);  /* from 0 */
CH_API int     ch_training_epochs(const ch_training *t); /* there will be; 0: nobody knows */
CH_API int64_t ch_training_step(const ch_training *t);   /* steps done in this call of ch_fit */
CH_API int64_t ch_training_epoch_step(const ch_training *t);  /* steps done in this epoch */
CH_API int64_t ch_training_epoch_steps(const ch_training *t); /* it will have; CH_UNKNOWN */
/* Rows trained on, in this call of ch_fit. */
CH_API int64_t ch_training_examples(const ch_training *t);
CH_API double  ch_training_seconds(const ch_training *t); /* since it began */

/* Numbers by name: of the steps of this epoch so far, and at its end of its validation too.
 * Reading them after a step waits for nobody, but costs a look at each metric's variables: who
 * needs them rarely asks rarely. All the more where workers run the steps ahead
 * (cohort/parameter_server.h): there it waits for those that were begun, and workers for it. */
CH_API int         ch_training_logs(ch_training *t);
CH_API const char *ch_training_log_name(ch_training *t, int i);
CH_API double      ch_training_log(ch_training *t, int i);
/* By name; NaN if there is none. */
CH_API double ch_training_get(ch_training *t, const char *name);

/* Ends the training after this step, or the evaluation; `why` is copied, and given by
 * ch_history_stopped. In a validation it ends that too, which then has no numbers. */
CH_API void ch_training_stop(ch_training *t, const char *why);

/* ---- callbacks ---- */

typedef enum ch_event {
    CH_ON_BEGIN = 1 << 0, /* before the first step */
    CH_ON_EPOCH_BEGIN = 1 << 1,
    CH_ON_STEP = 1 << 2, /* after each step; where workers run them, after each was begun */
    CH_ON_EPOCH_END = 1 << 3, /* with the numbers of the validation; not if it had no steps */
    CH_ON_VALIDATION_BEGIN = 1 << 4,
    CH_ON_VALIDATION_STEP = 1 << 5,
    CH_ON_VALIDATION_END = 1 << 6,
    CH_ON_END = 1 << 7 /* whatever happened, once CH_ON_BEGIN was told */
} ch_event;

typedef struct ch_callback ch_callback;

typedef struct ch_callback_ops {
    const char *name;
    unsigned    events; /* those that it is called for: the others cost nothing */
    ch_status (*on)(void *self, ch_training *t, ch_event event);
    void (*drop)(void *self); /* with the last reference; NULL: nothing is to be done */
} ch_callback_ops;

/* `ops` lives as long as the callback. */
CH_API CH_MUST_CHECK ch_status ch_callback_new(const ch_callback_ops *ops, void *self,
                                               ch_callback **out);
CH_API ch_callback            *ch_callback_ref(ch_callback *c);
CH_API void                    ch_callback_unref(ch_callback *c); /* NULL is fine */

/* A C function for some events. */
typedef ch_status (*ch_callback_fn)(ch_training *t, ch_event event, void *arg);
CH_API CH_MUST_CHECK ch_status ch_callback_of(unsigned events, ch_callback_fn fn, void *arg,
                                              ch_callback **out);

/* ---- those that come with the library ---- */

/* An epoch that has no number of the name which is monitored is passed over, and the log warns
 * once: validation need not come with every epoch. Each of these starts anew with each
 * training; those that look at epochs or steps look at those of ch_fit alone, not of
 * ch_evaluate. */

typedef struct ch_callback_early_stopping_options {
    const char *monitor; /* NULL: "val_loss" */
    ch_goal     goal;
    double      min_delta;   /* what is better by less does not count */
    int         patience;    /* epochs without a better one before it stops; 0: none */
    int         start_epoch; /* those before it are not looked at */
    bool        has_baseline;
    double      baseline;     /* what is not better than that either does not count */
    bool        restore_best; /* the model's variables are those of the best epoch in the end */
} ch_callback_early_stopping_options;
/* The rules are Keras's: an epoch that is the best so far never stops, whatever the baseline.
 * What is restored, at the end of every training, are the model's variables, not the
 * optimizer's; as long as it goes on there is a copy of them. */
CH_API CH_MUST_CHECK ch_status
ch_callback_early_stopping(const ch_callback_early_stopping_options *opt, ch_callback **out);

/* The learning rate of each epoch, from what it is and the epoch's number. An optimizer that
 * has a schedule is refused before the first step, by both of these. */
typedef double (*ch_rate_fn)(int epoch, double rate, void *arg);
CH_API CH_MUST_CHECK ch_status ch_callback_rate_schedule(ch_rate_fn fn, void *arg,
                                                         ch_callback **out);

typedef struct ch_callback_plateau_options {
    const char *monitor; /* NULL: "val_loss" */
    ch_goal     goal;
    double      factor;    /* 0: 0.1 */
    double      min_delta; /* 0: 1e-4; CH_OFF: 0 */
    double      min_rate;
    int         patience; /* epochs; 0: 10 */
    int         cooldown; /* epochs after a change in which nothing is counted */
} ch_callback_plateau_options;
/* Multiplies the learning rate when a number has stopped getting better. */
CH_API CH_MUST_CHECK ch_status
ch_callback_reduce_on_plateau(const ch_callback_plateau_options *opt, ch_callback **out);

typedef struct ch_callback_log_file_options {
    bool    append;      /* to what is there */
    int64_t every_steps; /* a line for each so many steps too; 0: for epochs alone */
} ch_callback_log_file_options;
/* Each line is written as it is made. Numbers read back to the same f64. The file is opened
 * when training begins, in a folder that is there; a callback that is used again goes on in its
 * file. A line for each epoch, the names in the first: "epoch,loss,val_loss"; with lines for
 * steps "epoch,step,loss". A name that comes later gets a column, which is empty in the lines
 * before: the file is written anew (where it cannot be, a pipe or a link, there is no such
 * column, and the log warns once). Appending goes by the names that are there. */
CH_API CH_MUST_CHECK ch_status ch_callback_csv_log(const char                         *path,
                                                   const ch_callback_log_file_options *opt,
                                                   ch_callback                       **out);
/* An object for each line: {"event": "epoch", "epoch": 0, "step": 469, "seconds": 3.2,
 * "loss": 0.31}; of a step, the event is "step". What is not finite is null. */
CH_API CH_MUST_CHECK ch_status ch_callback_json_log(const char                         *path,
                                                    const ch_callback_log_file_options *opt,
                                                    ch_callback                       **out);

typedef struct ch_callback_tensorboard_options {
    int64_t every_steps; /* scalars after each so many steps too; 0: after epochs alone */
    int     histograms;  /* of the variables, every so many epochs; 0: none */
    int     graph;       /* the model and its step as text: 0: yes; CH_OFF: no */
} ch_callback_tensorboard_options;
/* Event files for TensorBoard in directory/train and directory/validation, which are made; new
 * ones for each training. Tags are Keras's: epoch_loss and the like by epoch in both,
 * epoch_learning_rate, batch_loss and the like by step; histograms are
 * net/dense/kernel/histogram. The texts model and step come with the first epoch's end. */
CH_API CH_MUST_CHECK ch_status ch_callback_tensorboard(
    const char *directory, const ch_callback_tensorboard_options *opt, ch_callback **out);
/* A text of one's own, in Markdown, in train, at once; by the thread that calls ch_fit. The
 * callback is ch_callback_tensorboard's. */
CH_API CH_MUST_CHECK ch_status ch_callback_tensorboard_text(ch_callback *tensorboard,
                                                            const char *tag, int64_t step,
                                                            const char *text);

/* The loss is not finite: stops. Looks after each so many steps, 0: each, and at the end of an
 * epoch. */
CH_API CH_MUST_CHECK ch_status ch_callback_stop_on_nan(int64_t every_steps, ch_callback **out);
/* Stops after the step in which the time is up. */
CH_API CH_MUST_CHECK ch_status ch_callback_time_limit(double seconds, ch_callback **out);

typedef struct ch_callback_save_hook_options {
    int64_t     every_steps;   /* 0: not by steps */
    int         every_epochs;  /* 0: each, if none of the others is given */
    double      every_seconds; /* 0: not by time */
    const char *monitor; /* saves only what is better than all before; NULL: whatever comes */
    ch_goal     goal;
} ch_callback_save_hook_options;
/* Calls a function when something is to be saved: what checkpoints hang on. At the end too,
 * whatever happened, if there were steps since: then `best` is false if the number is not the
 * best so far. Else it is true. */
typedef ch_status (*ch_save_fn)(ch_training *t, bool best, void *arg);
CH_API CH_MUST_CHECK ch_status ch_callback_save_hook(const ch_callback_save_hook_options *opt,
                                                     ch_save_fn fn, void *arg,
                                                     ch_callback **out);

#endif
