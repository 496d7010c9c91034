/* test/api/hostile.h -- what the calls of tools/make-hostile-calls share with their test.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_API_HOSTILE_H
#define TEST_API_HOSTILE_H

#include <cohort/cohort.h>
#include <cohort/ops.h>
#include <cohort/strategy_ops.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>

enum { HOSTILE_ARGUMENTS = 12 };

typedef struct hostile_function {
    const char *name;
    void (*call)(const int *pick); /* pick[i]: which value argument i has; 0 is the usual one */
    bool in_step; /* it has a node or step: the call is made while one is recorded */
    int  n;
    int  values[HOSTILE_ARGUMENTS];
} hostile_function;

extern const hostile_function hostile_functions[]; /* the last has no name */

/* The usual values of arguments. */
extern struct hostile {
    ch_tensor    *tensor;
    ch_strategy  *strategy;
    ch_dataset   *dataset;
    ch_function  *function;
    ch_var       *var;
    ch_tuple     *tuple;
    ch_value     *value;
    ch_node      *node;
    ch_step      *step;
    ch_layer     *layer;
    ch_model     *model;
    ch_cluster   *cluster;
    ch_device    *device;
    ch_graph     *graph;
    ch_optimizer *optimizer;
    char          room[1 << 14]; /* zeros: results, options, lists of NULL */
} hostile;

#endif
