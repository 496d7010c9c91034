/* cohort/history.h -- histories: the numbers of each epoch of a training, and where the time
 * went.
 *
 * A history is the result of ch_fit, ch_evaluate and ch_train_and_evaluate: for each epoch,
 * numbers by name.
 *
 *     double best = ch_history_best(h, "val_loss", CH_GOAL_AUTO, &epoch);
 *     ch_history_print(h, text, sizeof(text));
 *     ch_history_unref(h);
 *
 *   - Histories are reference counted and do not change, so several threads may read them.
 *   - The history owns the texts and arrays that it returns.
 *   - Functions count epochs from 0, and so do ch_training_epoch and the files of CSV, JSON and
 *     TensorBoard. Texts for people count from 1: the printed tables, the plots and the
 *     progress line.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_HISTORY_H
#define COHORT_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cohort/status.h"

typedef struct ch_history ch_history;

CH_API ch_history *ch_history_ref(ch_history *h);
CH_API void        ch_history_unref(ch_history *h); /* NULL is fine */

/* Return the number of epochs in the history, beginning with the initial epoch; the number of
 * names; and name i, in order of appearance: "loss", "accuracy", ..., "val_loss", ... The name
 * is NULL out of range. */
CH_API int         ch_history_epochs(const ch_history *h);
CH_API int         ch_history_count(const ch_history *h);
CH_API const char *ch_history_name(const ch_history *h, int i);
/* Return the number with this name in an epoch, and in the last epoch. Epoch 0 is the first of
 * this history. NaN: there is no such number. */
CH_API double ch_history_at(const ch_history *h, const char *name, int epoch);
CH_API double ch_history_last(const ch_history *h, const char *name);

/* Whether a smaller or a larger number is better. CH_GOAL_AUTO: larger for names that end in
 * accuracy, precision, recall, auc, auc_exact, f1, confusion or top_k; smaller for all
 * others. */
typedef enum ch_goal { CH_GOAL_AUTO, CH_GOAL_MIN, CH_GOAL_MAX } ch_goal;
/* Returns the best number of all epochs, and sets *epoch to its epoch. `epoch` may be NULL.
 * NaN: there is no such number. */
CH_API double ch_history_best(const ch_history *h, const char *name, ch_goal goal, int *epoch);

/* Returns the number of points of the loss curve, and sets *out to the points: about 32 for
 * each epoch. Each is the mean loss over the steps since the point before. With parameter
 * servers these are the steps that had ended, so the points may differ from run to run. */
CH_API int ch_history_curve(const ch_history *h, const double **out);

/* Returns why the training was stopped early: "interrupted", "early_stopping: ...". NULL: it
 * was not stopped. */
CH_API const char *ch_history_stopped(const ch_history *h);

/* The rows of the time table. Each is a mean over the replicas. Together they are the whole
 * time. */
typedef enum ch_time {
    CH_TIME_INPUT,     /* waiting for data */
    CH_TIME_FORWARD,   /* the forward pass and the metrics */
    CH_TIME_BACKWARD,  /* the gradients */
    CH_TIME_WAIT,      /* waiting for other replicas */
    CH_TIME_WORKERS,   /* waiting for workers, if these run the steps; includes their work */
    CH_TIME_REDUCE,    /* reductions over the replicas */
    CH_TIME_UPDATE,    /* the optimizer */
    CH_TIME_VALIDATE,  /* validation */
    CH_TIME_CALLBACKS, /* callbacks and the progress line */
    CH_TIME_SAVE,      /* saving (ch_callback_backup), as far as steps wait for it */
    CH_TIME_PLANNING,  /* recording the step, and planning a program for new inputs */
    CH_TIME_OTHER,     /* the rest: launching and counting */
    CH_TIMES
} ch_time;
/* How a call of ch_fit or ch_evaluate spent its time. */
typedef struct ch_time_table {
    double  seconds[CH_TIMES]; /* of each row */
    double  total;             /* wall-clock seconds */
    int64_t steps, examples;   /* of the training */
    int     replicas;          /* of a worker, if workers run the steps */
    int     workers;           /* workers that run the steps; 0: this process runs them */
    double  one_replica_step;  /* seconds, as given to ch_fit; else 0 */
    /* Saves of ch_callback_backup, and those that were skipped because another was still being
     * written when they were due. */
    int64_t saves, skipped_saves;
    int64_t peak_bytes; /* peak memory of the process, as the system reports it */
} ch_time_table;
CH_API const char   *ch_time_name(ch_time t); /* "waiting for data"; "" out of range */
CH_API ch_time_table ch_history_time(const ch_history *h);

/* Print as snprintf does. ch_history_print prints the numbers of all epochs as a table, "-"
 * where there is none. ch_history_print_time prints the time table, the speed of training
 * (without validation, callbacks, saving, recording and planning), and advice if waiting takes
 * more than a fifth of the time. */
CH_API int ch_history_print(const ch_history *h, char *text, size_t size);
CH_API int ch_history_print_time(const ch_history *h, char *text, size_t size);
/* Draws a plot for a terminal, `columns` wide and `rows` high, and prints it as snprintf does.
 * It shows a number over the epochs; "loss" is ch_history_curve over the steps. If no epoch has
 * the name, it prints a line with the names that exist. If the plot does not fit into `size`,
 * it contains the lines that fit. */
CH_API int ch_history_plot(const ch_history *h, const char *name, int columns, int rows,
                           char *text, size_t size);

#endif
