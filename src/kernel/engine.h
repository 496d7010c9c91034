/* kernel/engine.h -- oneDNN as a guest: one thread, and nothing of the host changed.
 *
 * oneDNN (Debian's, on OpenMP) asks OpenMP how many threads to use when it makes a primitive
 * and when it runs one. That number belongs to the calling thread, so every call of ours sets
 * it to one and puts it back.
 *
 * Only kernel/ includes this file, and nothing above it sees a type of oneDNN's.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ENGINE_H
#define KERNEL_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "cohort/shape.h"

/* Whether oneDNN is built in and wanted, and has a CPU engine. */
bool ch__onednn_is_on(void);

#if CH_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#define CH_DNN_MAX_ARGS 4

/* A primitive that several threads may run at once, each in a lane of its own. */
typedef struct ch_dnn ch_dnn;

/* What a primitive takes: DNNL_ARG_SRC and the like, and its layout. */
typedef struct ch_dnn_arg {
    int                       arg;
    const dnnl_memory_desc_t *md;
} ch_dnn_arg;

/* Whether sizes are what oneDNN is made for: with huge ones its plans overflow, and it may die. */
bool ch__dnn_takes(int n, const int64_t *size);

/* A description of what to run, for one thread, with scratch memory that the caller brings.
 * UNIMPLEMENTED if oneDNN has nothing better than its reference. `add`: the result is added to
 * what is there. */
CH_MUST_CHECK ch_status ch__dnn_describe(const_dnnl_op_desc_t what, bool add,
                                         const_dnnl_primitive_desc_t forward,
                                         dnnl_primitive_desc_t      *out);
/* The primitive of a description, which stays the caller's. */
CH_MUST_CHECK ch_status ch__dnn_new(const_dnnl_primitive_desc_t pd, int n_args,
                                    const ch_dnn_arg *arg, ch_dnn **out);
/* Moves an array from one layout to another; needs no scratch. */
CH_MUST_CHECK ch_status ch__dnn_reorder(const dnnl_memory_desc_t *from,
                                        const dnnl_memory_desc_t *to, ch_dnn **out);
void                    ch__dnn_free(ch_dnn *d); /* NULL is fine */
size_t                  ch__dnn_scratch_bytes(const ch_dnn *d);
/* Runs it; data[i] is for arg[i]. */
CH_MUST_CHECK ch_status ch__dnn_run(const ch_dnn *d, const void *const *data, void *scratch);
#endif

#endif
