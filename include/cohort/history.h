/* cohort/history.h -- what happened while a model was trained: numbers by name and epoch, and where the time went.
 *
 *     double best = ch_history_best(h, "val_loss", CH_GOAL_AUTO, &epoch);
 *     ch_history_print(h, text, sizeof(text));
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

/* How many epochs there are, from the initial one on; how many names, and the i-th of them, in the order in which they came: "loss",
 * "accuracy", ..., "val_loss", ... */
CH_API int         ch_history_epochs(const ch_history *h);
CH_API int         ch_history_count(const ch_history *h);
CH_API const char *ch_history_name(const ch_history *h, int i);
/* The number of an epoch, which is counted from 0 in this history; of the last one. NaN where there is none. */
CH_API double ch_history_at(const ch_history *h, const char *name, int epoch);
CH_API double ch_history_last(const ch_history *h, const char *name);

/* What is better: less or more. AUTO: more for names that end in accuracy, precision, recall, auc, f1 or confusion, or top_k;
 * less for the others. */
typedef enum ch_goal { CH_GOAL_AUTO, CH_GOAL_MIN, CH_GOAL_MAX } ch_goal;
/* The best of all epochs; `epoch` may be NULL. NaN if there is none. */
CH_API double ch_history_best(const ch_history *h, const char *name, ch_goal goal, int *epoch);

/* The loss as it went: some 32 numbers an epoch, each the mean over the steps since the one before. Borrowed. */
CH_API int ch_history_curve(const ch_history *h, const double **out);

/* Why training ended before its time: "interrupted", "early_stopping: ..."; NULL if it did not. */
CH_API const char *ch_history_stopped(const ch_history *h);

/* Where the time went. Each is the mean over the replicas; together they are the whole. */
typedef enum ch_time {
    CH_TIME_INPUT,    /* waiting for data */
    CH_TIME_FORWARD,  /* the step: what is differentiated, and metrics */
    CH_TIME_BACKWARD, /* the gradients */
    CH_TIME_WAIT,     /* for other replicas */
    CH_TIME_WORKERS, /* waiting for workers, where these run the steps: what they do is not seen here */
    CH_TIME_REDUCE,    /* adding up over the replicas */
    CH_TIME_UPDATE,    /* the optimizer */
    CH_TIME_VALIDATE,  /* evaluating */
    CH_TIME_CALLBACKS, /* and the progress line */
    CH_TIME_PLANNING,  /* recording the step, and planning its program for each new signature */
    CH_TIME_OTHER,     /* what is between: launching, counting */
    CH_TIMES
} ch_time;
typedef struct ch_time_table {
    double  seconds[CH_TIMES];
    double  total;           /* of the clock on the wall */
    int64_t steps, examples; /* trained on */
    int     replicas;
    int     workers; /* that run steps, each with so many replicas; 0: this process does */
    double  one_replica_step; /* seconds, as they were given to ch_fit; else 0 */
    int64_t peak_bytes;       /* of the process's memory, as the system counts it */
} ch_time_table;
CH_API const char   *ch_time_name(ch_time t);
CH_API ch_time_table ch_history_time(const ch_history *h);

/* The numbers of all epochs as a table, "-" where there is none; the time table, the speed of training (without validation,
 * callbacks, recording and planning), and advice if waiting takes more than a fifth of the time; both as snprintf does. What people read counts epochs from 1: these, the picture and the progress line. What programs read counts
 * from 0: ch_history_at, ch_training_epoch, and files of CSV, JSON and TensorBoard. */
CH_API int ch_history_print(const ch_history *h, char *text, size_t size);
CH_API int ch_history_print_time(const ch_history *h, char *text, size_t size);
/* A small picture for terminals, `columns` wide and `rows` high: of a number over the epochs; of "loss", of ch_history_curve over
 * the steps. Of a name that no epoch has, a line that says which there are. As snprintf does; of a picture that does not fit, the
 * lines stay that do. */
CH_API int ch_history_plot(const ch_history *h, const char *name, int columns, int rows,
                           char *text, size_t size);

#endif
