/* cohort/callback.h -- callbacks: functions that ch_fit calls while it trains a model.
 *
 * A callback is called at chosen events of a training: after each step, at the end of an epoch
 * and so on. It can read the numbers of the training, save the model, or stop the training.
 *
 *     ch_callback *stop = NULL;
 *     rc = ch_callback_early_stopping(
 *         &(ch_callback_early_stopping_options){.patience = 3, .restore_best = true}, &stop);
 *     rc = ch_fit(m, data, &(ch_fit_options){.n_callbacks = 1, .callback = &stop}, NULL);
 *     ch_callback_unref(stop);
 *
 *   - Callbacks are reference counted. ch_fit borrows them; the caller unrefs them afterwards.
 *     The same callback can be given to several calls of ch_fit, one after the other.
 *   - The thread that calls ch_fit calls the callbacks, in the order of the list, between
 *     steps.
 *   - If a callback returns an error, the training ends with that error. The message names the
 *     callback.
 *   - ch_callback_of makes a callback from a C function, ch_callback_new from a table of
 *     functions and a state.
 *   - The state of a callback can be saved and loaded, so that a training that was killed goes
 *     on where it was. A training that goes on in mid-epoch sends CH_ON_BEGIN, and then only
 *     the events after the saved state: CH_ON_EPOCH_BEGIN is not repeated.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_CALLBACK_H
#define COHORT_CALLBACK_H

#include "cohort/history.h"
#include "cohort/model.h"
#include "cohort/optimizer.h"
#include "cohort/value.h"

/* ---- the training in progress ----
 *
 * A ch_training describes the call of ch_fit, ch_evaluate or ch_predict that is in progress. It
 * is valid only until the callback returns. The objects and texts that these functions return
 * are borrowed. */

typedef struct ch_training ch_training;

/* Return the model, and the optimizer that it was compiled with. The optimizer is NULL if there
 * is none, or in an evaluation. */
CH_API ch_model     *ch_training_model(const ch_training *t);
CH_API ch_optimizer *ch_training_optimizer(const ch_training *t);
/* Returns true in a call of ch_evaluate or ch_predict, and false in ch_fit, also while ch_fit
 * validates. */
CH_API bool    ch_training_is_evaluation(const ch_training *t);
CH_API int     ch_training_epoch(const ch_training *t);      /* number of the epoch, from 0 */
CH_API int     ch_training_epochs(const ch_training *t);     /* planned epochs; 0: not known */
CH_API int64_t ch_training_step(const ch_training *t);       /* steps done in this training */
CH_API int64_t ch_training_epoch_step(const ch_training *t); /* steps done in this epoch */
/* Returns the number of steps that this epoch will have, or CH_UNKNOWN. */
CH_API int64_t ch_training_epoch_steps(const ch_training *t);
/* Returns the number of examples processed in this training. Steps and examples count on if the
 * training continues from a checkpoint; seconds do not. */
CH_API int64_t ch_training_examples(const ch_training *t);
CH_API double  ch_training_seconds(const ch_training *t); /* seconds since the call began */

/* Return the logs: the loss and the metrics of the steps of this epoch so far. At the end of
 * the epoch the logs also have the numbers of its validation ("val_loss"). ch_training_logs
 * returns how many there are. ch_training_log_name and ch_training_log return the name and the
 * value of number i; out of range they return NULL and NaN.
 *
 * After a step these functions read the variables of each metric, so call them only when the
 * numbers are needed. With parameter servers (cohort/parameter_server.h) steps are in flight:
 * these functions then also wait until all scheduled steps have finished, and the workers are
 * idle meanwhile. */
CH_API int         ch_training_logs(ch_training *t);
CH_API const char *ch_training_log_name(ch_training *t, int i);
CH_API double      ch_training_log(ch_training *t, int i);
/* Returns the value of the log with this name; NaN if there is none. Waits as ch_training_log
 * does. */
CH_API double ch_training_get(ch_training *t, const char *name);

/* Ends the training or the evaluation after the current step. `why` is copied;
 * ch_history_stopped returns it. NULL: "stopped". If ch_fit is validating, the validation ends
 * too, and its numbers are dropped. If several callbacks stop the training, the first `why`
 * counts. */
CH_API void ch_training_stop(ch_training *t, const char *why);

/* ---- callbacks ---- */

/* Events, as bits. ch_evaluate and ch_predict use CH_ON_BEGIN, the validation events and
 * CH_ON_END. */
typedef enum ch_event {
    CH_ON_BEGIN = 1 << 0,       /* before the first step */
    CH_ON_EPOCH_BEGIN = 1 << 1, /* before the first step of an epoch */
    CH_ON_STEP = 1 << 2,        /* after a step; with parameter servers: after scheduling it */
    /* After an epoch and its validation. Not if the epoch had no steps. */
    CH_ON_EPOCH_END = 1 << 3,
    CH_ON_VALIDATION_BEGIN = 1 << 4, /* before the first step of a validation */
    CH_ON_VALIDATION_STEP = 1 << 5,  /* after a step of a validation */
    CH_ON_VALIDATION_END = 1 << 6,   /* after a validation */
    CH_ON_END = 1 << 7 /* at the end, also after an error, if CH_ON_BEGIN was sent */
} ch_event;

typedef struct ch_callback ch_callback;

typedef struct ch_callback_ops {
    const char *name; /* for error messages */
    unsigned events;  /* the events to be called for, combined by |; the others cost nothing */
    /* Handles an event. Returns CH_OK, or an error that ends the training. */
    ch_status (*on)(void *self, ch_training *t, ch_event event);
    /* Frees `self`; called with the last reference. NULL: there is nothing to free. */
    void (*drop)(void *self);
    /* Stores the state of the callback in *out, as a new tuple. Its leaves must be plain values
     * and have different names; a single leaf needs none. The caller unrefs it. Called between
     * steps, after all callbacks have handled the last event. NULL: there is nothing to save.
     * */
    ch_status (*save)(void *self, ch_tuple **out);
    /* Takes over a saved state, which is borrowed. Called after CH_ON_BEGIN, if the training
     * continues from a checkpoint, and before the first step. NULL: the state is not used. */
    ch_status (*load)(void *self, ch_tuple *state);
} ch_callback_ops;

/* Creates a callback from a table of functions and a state. `ops` must live as long as the
 * callback. On an error `drop` is not called. */
CH_API CH_MUST_CHECK ch_status ch_callback_new(const ch_callback_ops *ops, void *self,
                                               ch_callback **out);
CH_API ch_callback            *ch_callback_ref(ch_callback *c);
CH_API void                    ch_callback_unref(ch_callback *c); /* NULL is fine */

/* Creates a callback that calls `fn` for the given events, combined by |. `arg` is passed on to
 * `fn`. */
typedef ch_status (*ch_callback_fn)(ch_training *t, ch_event event, void *arg);
CH_API CH_MUST_CHECK ch_status ch_callback_of(unsigned events, ch_callback_fn fn, void *arg,
                                              ch_callback **out);

/* ---- callbacks of the library ----
 *
 * A callback with a `monitor` follows the log of that name. If an epoch has no such log, the
 * callback ignores the epoch and warns once (cohort/log.h), because a validation need not run
 * in every epoch. Each of these callbacks resets its state when a training begins. None of them
 * acts in ch_evaluate or ch_predict. `opt` may be NULL in all of them. If a training continues
 * from a checkpoint, they continue too. */

typedef struct ch_callback_early_stopping_options {
    const char *monitor;     /* name of the log to follow; NULL: "val_loss" */
    ch_goal     goal;        /* whether less or more is better */
    double      min_delta;   /* least improvement that counts */
    int         patience;    /* epochs without improvement before the training stops; 0: 1 */
    int         start_epoch; /* first epoch that counts; earlier epochs are ignored */
    bool        has_baseline;
    /* If has_baseline is set: an improvement resets the patience only if it also beats this
     * number. */
    double baseline;
    bool   restore_best; /* at the end, set the model's variables to those of the best epoch */
} ch_callback_early_stopping_options;
/* Stops the training when a log has stopped improving, by the rules of Keras. An epoch that is
 * the best so far never stops the training, whatever the baseline. restore_best keeps a copy of
 * the model's variables during the training, and restores them at its end, however it ends. The
 * optimizer's variables are not restored. */
CH_API CH_MUST_CHECK ch_status
ch_callback_early_stopping(const ch_callback_early_stopping_options *opt, ch_callback **out);

/* Sets the learning rate at the beginning of each epoch to fn(epoch, current rate, arg). If the
 * optimizer has a schedule, or if there is no optimizer, the training fails with
 * FAILED_PRECONDITION before its first step. The same holds for
 * ch_callback_reduce_on_plateau. */
typedef double (*ch_rate_fn)(int epoch, double rate, void *arg);
CH_API CH_MUST_CHECK ch_status ch_callback_rate_schedule(ch_rate_fn fn, void *arg,
                                                         ch_callback **out);

typedef struct ch_callback_plateau_options {
    const char *monitor;   /* name of the log to follow; NULL: "val_loss" */
    ch_goal     goal;      /* whether less or more is better */
    double      factor;    /* factor for the learning rate, below 1; 0: 0.1 */
    double      min_delta; /* least improvement that counts; 0: 1e-4; CH_OFF: 0 */
    double      min_rate;  /* the learning rate is not reduced below this */
    int         patience;  /* epochs without improvement before the rate is reduced; 0: 10 */
    int         cooldown;  /* epochs after a reduction that do not count */
} ch_callback_plateau_options;
/* Multiplies the learning rate by `factor` when a log has stopped improving. */
CH_API CH_MUST_CHECK ch_status
ch_callback_reduce_on_plateau(const ch_callback_plateau_options *opt, ch_callback **out);

typedef struct ch_callback_log_file_options {
    bool    append;      /* append to an existing file; false: overwrite it */
    int64_t every_steps; /* also write a line every this many steps; 0: only for epochs */
} ch_callback_log_file_options;
/* Writes the logs to a CSV file: a header and a line for each epoch, "epoch,loss,val_loss".
 * With every_steps the columns are "epoch,step,loss". Numbers have all their digits: they read
 * back to the same double.
 *
 * The file is opened when the training begins. Its directory must exist. Each line is written
 * at once; without `append`, the first line replaces the lines of an earlier program. A
 * callback that is used in a second training appends to its file. When a new name appears among
 * the logs, the file is rewritten with one more column, which is empty in the earlier lines. If
 * the file cannot be rewritten, because it is a pipe or a link, the column is left out, and the
 * callback warns once. With `append` the columns are those of the existing header.
 *
 * If the training continues from a checkpoint, the lines after the checkpoint are removed. If
 * lines before it are missing, the callback warns and goes on. FAILED_PRECONDITION: the last of
 * these lines is not the line that was written, so the file belongs to another training. */
CH_API CH_MUST_CHECK ch_status ch_callback_csv_log(const char                         *path,
                                                   const ch_callback_log_file_options *opt,
                                                   ch_callback                       **out);
/* Writes the logs as JSON, an object on each line: {"event": "epoch", "epoch": 0, "step": 469,
 * "seconds": 3.2, "loss": 0.31}. For a step the event is "step". NaN and infinities are written
 * as null. The file is opened, appended to and written as by ch_callback_csv_log. */
CH_API CH_MUST_CHECK ch_status ch_callback_json_log(const char                         *path,
                                                    const ch_callback_log_file_options *opt,
                                                    ch_callback                       **out);

typedef struct ch_callback_tensorboard_options {
    int64_t every_steps; /* also write scalars every this many steps; 0: only for epochs */
    int     histograms;  /* write histograms of the variables every this many epochs; 0: none */
    int     graph;       /* write the model and its step as text: 0: yes; CH_OFF: no */
} ch_callback_tensorboard_options;
/* Writes event files for TensorBoard to directory/train and directory/validation. The
 * directories are created if they do not exist. Each training writes new files, also if it
 * continues from a checkpoint: the files then repeat the steps after the checkpoint, and
 * TensorBoard shows the later values.
 *
 * The tags are those of Keras: "epoch_loss" and the like by epoch in both directories;
 * "epoch_learning_rate" by epoch and "batch_loss" and the like by step in train; histograms are
 * "net/dense/kernel/histogram". The texts "model" and "step" are written at the end of the
 * first epoch. */
CH_API CH_MUST_CHECK ch_status ch_callback_tensorboard(
    const char *directory, const ch_callback_tensorboard_options *opt, ch_callback **out);
/* Writes a text in Markdown to directory/train, at once. `tensorboard` must be a callback of
 * ch_callback_tensorboard, else INVALID_ARGUMENT. Must be called by the thread that calls
 * ch_fit. */
CH_API CH_MUST_CHECK ch_status ch_callback_tensorboard_text(ch_callback *tensorboard,
                                                            const char *tag, int64_t step,
                                                            const char *text);

/* Stops the training if the loss is NaN or infinite. Checks it every `every_steps` steps (0:
 * every step) and at the end of an epoch. */
CH_API CH_MUST_CHECK ch_status ch_callback_stop_on_nan(int64_t every_steps, ch_callback **out);
/* Stops the training after the step in which `seconds`, counted from the beginning of ch_fit,
 * are over. `seconds` must be positive. With ch_callback_backup, the training goes on when the
 * program is started again, for as many seconds. */
CH_API CH_MUST_CHECK ch_status ch_callback_time_limit(double seconds, ch_callback **out);

typedef struct ch_callback_save_hook_options {
    int64_t     every_steps;   /* save every this many steps; 0: not by steps */
    int         every_epochs;  /* save every this many epochs; 0: 1 if both others are 0 */
    double      every_seconds; /* save every this many seconds; 0: not by time */
    const char *monitor;       /* save only if this log is the best so far; NULL: always */
    ch_goal     goal;          /* whether less or more is better */
} ch_callback_save_hook_options;
/* Calls `fn` when something should be saved: the place for checkpoints. `fn` is also called at
 * the end of the training, however it ends, if there were steps since the last save. `best` is
 * true, except in that last call if the monitored log is not the best so far. */
typedef ch_status (*ch_save_fn)(ch_training *t, bool best, void *arg);
CH_API CH_MUST_CHECK ch_status ch_callback_save_hook(const ch_callback_save_hook_options *opt,
                                                     ch_save_fn fn, void *arg,
                                                     ch_callback **out);

/* ---- backup ---- */

/* Exit code of a program that wants to be started again. `main` may return it if ch_fit was
 * terminated (ch_backup_options.signals). */
#define CH_EXIT_RESTART 42

typedef struct ch_backup_options {
    int64_t every_steps;   /* save every this many steps; 0: not by steps */
    int     every_epochs;  /* save every this many epochs; 0: 1 if all others are 0 */
    double  every_seconds; /* save every this many seconds; 0: not by time */
    /* Share of the time that saves may cost, such as 0.035; 0: no limit. If there is no
     * interval, saves as often as the share allows. */
    double overhead;
    int    max_to_keep; /* number of newest checkpoints that stay; 0: 2 */
    /* Log to follow: an epoch in which it is the best so far is saved too, and this checkpoint
     * stays beside the newest. NULL: none. */
    const char *monitor;
    ch_goal     goal; /* whether less or more is better */
    /* SIGTERM ends the training: it finishes the step and saves, and ch_fit returns CANCELLED,
     * also if the signal comes during the last save, so that the training is complete. Started
     * again, it then trains no step. A second SIGTERM ends the process. SIGUSR1 saves, and the
     * training goes on. Handlers of the program are called too, after those of the library, and
     * restored when ch_fit returns. */
    bool signals;
    /* Longest time from SIGTERM to the end of all waits for saves; 0: 10. A state that is not
     * saved within that time is given up, and the last checkpoint stays. The memory of such a
     * save is not freed. */
    double grace_seconds;
    /* Limit of the memory for a copy of the state; 0: the size of the state. Values that do not
     * fit are written while the training waits. */
    int64_t staging_bytes;
} ch_backup_options;
/* Saves the training as checkpoints in a directory (cohort/checkpoint.h), and continues it: if
 * the directory has a checkpoint when ch_fit begins, the training goes on in mid-epoch where it
 * was saved. It ends with the weights, the history and the log files of a training that was
 * never killed, to the byte. The same holds for ch_train_and_evaluate. Creates the directory at
 * once if it does not exist, so that log files may be in it. `opt` may be NULL.
 *
 *   - Saved are the model, under the name "model" of ch_checkpoint_add_model; the optimizer and
 *     the metrics of ch_compile; the positions in the data; the history; and the states of the
 *     callbacks. The program must pass the same data, and the same callbacks in the same order;
 *     new ones at the end.
 *   - The state is saved between steps, and once more before CH_ON_END. Checkpoints stay when
 *     the training ends, so a program that is started again trains no step. A training that was
 *     stopped by Ctrl-C or ch_callback_time_limit goes on when it is started again; a training
 *     that another callback stopped has ended. If a program trains several times, each training
 *     needs a directory of its own.
 *   - In rounds of CH_SYNCHRONOUS (cohort/coordinator.h), a save that comes due in the middle
 *     of a round is made at the end of the round, and so are those of signals, Ctrl-C and
 *     ch_callback_time_limit: the training runs on until then.
 *   - An error of a save is a warning (cohort/log.h), and the training goes on. An error of the
 *     restore ends the training. FAILED_PRECONDITION: another program uses the directory. */
CH_API CH_MUST_CHECK ch_status ch_callback_backup(const char              *directory,
                                                  const ch_backup_options *opt,
                                                  ch_callback            **out);

#endif
