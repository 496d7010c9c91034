/* fit/progress_text.h -- progress as text: a line for terminals, a line for files, a JSON
 * object.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_PROGRESS_TEXT_H
#define FIT_PROGRESS_TEXT_H

#include "fit/training.h"
#include "tensor/print.h"

/* The progress and the speed of an epoch, or of a pass of ch_evaluate or ch_predict. */
typedef struct ch_pace {
    const char *title;       /* "Epoch 3/5"; used by ch__progress_plain only; borrowed */
    int64_t     step, steps; /* steps done; planned steps, negative: not known */
    double      seconds;     /* seconds since the epoch began */
    double      per_step;    /* seconds per step; 0: not known yet */
    double      per_second;  /* examples per second; 0: not known yet */
    bool        is_done;
    bool        is_validating;
    int64_t     validation_step, validation_steps;
    /* Number of times the line was drawn: it moves the bar if the number of steps is not
     * known. */
    int frame;
} ch_pace;

/* The properties of the terminal, and the expected logs. */
typedef struct ch_progress_style {
    int  columns; /* width of the terminal; the last column stays free */
    bool has_color, is_utf8;
    /* Logs to leave room for while there are none yet. NULL: a loss and an accuracy. */
    const ch_logs *expected;
} ch_progress_style;

/* Returns true if the name begins with "val_". */
bool ch__is_of_validation(const char *name);
/* Returns the number of columns that the logs take if each number has 6 columns. */
int ch__progress_reserve(const ch_logs *l, bool is_utf8, bool with_validation);
/* Writes the live line and returns the number of columns of its last line. If p->is_done, the
 * line stays: logs that do not fit are on further lines below. Otherwise they are left out. */
int ch__progress_live(ch_text *o, const ch_pace *p, const ch_logs *l,
                      const ch_progress_style *style);
/* Writes a line for a file. It has no control characters except the newline at its end. */
void ch__progress_plain(ch_text *o, const ch_pace *p, const ch_logs *l);

/* An event of the JSON output. */
typedef struct ch_moment {
    const char *event;
    int         epoch, epochs; /* current epoch, from 0; planned epochs */
    double      seconds;       /* seconds since the training began */
    const char *why;           /* reason why the training was stopped; NULL: it was not */
} ch_moment;
/* Writes a JSON object and a newline:
 *
 *     {"event": "epoch", "epoch": 0, "epochs": 5, "step": 469, "steps": 469, "seconds": 3.2,
 *      "examples_per_second": 2e4, "logs": {"loss": 0.31}}
 *
 * Numbers that are not known or not finite are null. */
void ch__progress_object(ch_text *o, const ch_moment *at, const ch_pace *p, const ch_logs *l);

/* Short texts of a log ("0.3125", "1.2000e-05"), a duration ("12s", "2:05", "1:02:03"), an
 * elapsed time (the same, but "1.2s" below ten seconds), a time per step ("2.1ms/step") and a
 * rate ("20.1k"). */
typedef struct ch_short {
    char text[32];
} ch_short;
ch_short ch__short_number(double x);
ch_short ch__short_time(double seconds);
ch_short ch__short_elapsed(double seconds);
ch_short ch__short_step(double seconds);
ch_short ch__short_rate(double per_second);

#endif
