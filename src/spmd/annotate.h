/* spmd/annotate.h -- the op of annotations: a value that lies on the cores in a given layout.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_ANNOTATE_H
#define SPMD_ANNOTATE_H

#include "spmd/spmd.h"

/* Output 0 is input 0. The gradient has the same annotation. A graph with annotations can be
 * encoded; its runs need replicas with one core, for which an annotation is the value itself,
 * or with as many cores as the annotations are for. */
extern const ch_op ch__op_with_layout;

/* The list of ops for src/cohort.c. Graphs of cores have ops besides (spmd/core_ops.h). */
#define CH_OPS_SPMD(X) X(with_layout)

typedef enum ch_annotation {
    CH_ANNOTATION_SPLIT,     /* `at` has the parts of each axis */
    CH_ANNOTATION_REPLICATE, /* every core has the whole value */
    CH_ANNOTATION_ASSIGN,    /* at[0] is the core that has the value */
    CH_ANNOTATION_MESH       /* `at` has the axis of the mesh of each axis */
} ch_annotation;

/* Record an annotation of x. `caller` is the return address in the user's code. */
ch_node *ch__annotate(const void *caller, ch_node *x, ch_annotation kind, int n, const int *at);

/* Sets *out to the layout of the value of an annotation. */
ch_status ch__annotated_layout(const ch_spmd_options *opt, const ch_node *call,
                               ch_core_layout *out);

#endif
