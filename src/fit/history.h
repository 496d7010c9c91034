/* fit/history.h -- the inside of a history, for who writes it.   SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef FIT_HISTORY_H
#define FIT_HISTORY_H

#include <stdatomic.h>

#include "fit/training.h"

struct ch_history {
    atomic_int    refs;
    int           n_epochs, epochs_capacity;
    ch_logs      *epoch;
    ch_logs       names; /* all that ever came, in that order */
    int           n_curve, curve_capacity;
    double       *curve; /* the loss, as it went */
    ch_time_table time;
    bool          is_of_arrays; /* trained on arrays: the program has no pipeline to change */
    char          why[160];
};

ch_status ch__history_new(ch_history **out);
/* An epoch more, a copy. */
ch_status ch__history_add(ch_history *h, const ch_logs *logs);
ch_status ch__history_point(ch_history *h, double loss);

#endif
