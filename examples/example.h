/* examples/example.h -- helper functions of all examples.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_EXAMPLE_H
#define EXAMPLES_EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cohort/cohort.h"

/* Prints an error and exits if a call has failed. */
static inline void must(ch_status rc)
{
    if (rc == CH_OK)
        return;
    fprintf(stderr, "%s: %s\n", ch_status_name(rc), ch_error_message());
    exit(1);
}

/* Prints a message and exits if `ok` is false. `what` was expected, `have` is the input. */
static inline void want(bool ok, const char *what, const char *have)
{
    if (ok)
        return;
    fprintf(stderr, "want %s, not \"%.40s\"\n", what, have);
    exit(1);
}

/* Returns true if the first argument is "short". The tests run the examples this way. */
static inline bool is_short(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "short") == 0;
}

/* Stores the names of the CPU devices, at most MOST_CORES. Returns their number. */
enum { MOST_CORES = 64 };
static inline int name_cores(const char *name[MOST_CORES])
{
    int n = 0;

    for (; n < ch_device_count("CPU") && n < MOST_CORES; n++)
        name[n] = ch_device_name(ch_device_at(n)); /* CPU devices come first */
    return n;
}

/* Returns the number in a component; if it is per replica, the number of the first replica. */
static inline double number_of(const ch_tuple *t, const char *name)
{
    double x = 0;

    must(ch_tensor_item(ch_value_at(ch_tuple_get(t, name), 0), &x));
    return x;
}

/* Returns the tensors as the inputs of a step. Unrefs the tensors. */
static inline ch_tuple *batch_of(int n, ch_tensor *const *t)
{
    ch_tuple *batch = NULL;

    must(ch_tuple_of(n, t, &batch));
    for (int i = 0; i < n; i++)
        ch_tensor_unref(t[i]);
    return batch;
}

#endif
