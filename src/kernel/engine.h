/* kernel/engine.h -- oneDNN on a single thread, without side effects on the host program.
 *
 * oneDNN (Debian's build, on OpenMP) reads the number of OpenMP threads when it creates a
 * primitive and when it runs one. This number belongs to the calling thread, so each of our
 * calls sets it to 1 and restores it afterwards.
 *
 * Only kernel/ may include this file. No type of oneDNN is visible above kernel/.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ENGINE_H
#define KERNEL_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "cohort/shape.h"

/* Returns true if oneDNN is built in and enabled by the configuration, and has a CPU engine. */
bool ch__onednn_is_on(void);

#if CH_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#define CH_DNN_MAX_ARGS 4

/* A primitive. Several threads may run it at the same time. */
typedef struct ch_dnn ch_dnn;

/* An argument of a primitive: its kind (DNNL_ARG_SRC, ...) and its layout. */
typedef struct ch_dnn_arg {
    int                       arg;
    const dnnl_memory_desc_t *md;
} ch_dnn_arg;

/* Returns true if n sizes, and their product, are in the range that oneDNN handles: each in [1,
 * 2^24], the product at most 2^31. With larger sizes oneDNN may overflow and crash. */
bool ch__dnn_supports(int n, const int64_t *size);

/* Creates the description of a primitive that runs on a single thread, with scratch memory of
 * the caller. With `add`, the result is added to the output array. `forward` is the description
 * of the forward primitive if this is a gradient, else NULL. The caller owns *out.
 *
 * Returns CH_UNIMPLEMENTED if oneDNN has only its reference implementation. */
CH_MUST_CHECK ch_status ch__dnn_describe(const_dnnl_op_desc_t desc, bool add,
                                         const_dnnl_primitive_desc_t forward,
                                         dnnl_primitive_desc_t      *out);
/* Creates the primitive of a description. The caller keeps ownership of pd. */
CH_MUST_CHECK ch_status ch__dnn_new(const_dnnl_primitive_desc_t pd, int n_args,
                                    const ch_dnn_arg *arg, ch_dnn **out);
/* Creates a primitive that copies an array from a layout to another. It needs no scratch
 * memory. */
CH_MUST_CHECK ch_status ch__dnn_reorder(const dnnl_memory_desc_t *from,
                                        const dnnl_memory_desc_t *to, ch_dnn **out);
void                    ch__dnn_free(ch_dnn *d); /* accepts NULL */
size_t                  ch__dnn_scratch_bytes(const ch_dnn *d);
/* Runs the primitive. data[i] is the array of arg[i]. */
CH_MUST_CHECK ch_status ch__dnn_run(const ch_dnn *d, const void *const *data, void *scratch);
#endif

#endif
