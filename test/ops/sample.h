/* test/ops/sample.h -- samples: a table row for each property of an op.
 *
 * A sample has a function that records an op, the inputs, and a plain reference in f64 that
 * shares no code with the library. From a sample, the suite checks the result in every dtype of
 * the sample; equal bits with one thread and with several, fused and not fused, and after
 * encoding and decoding; the gradient against finite differences in f64; and the gradient of
 * the gradient. An op of the table without a sample fails the suite.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_OPS_SAMPLE_H
#define TEST_OPS_SAMPLE_H

#include <cohort/cohort.h>
#include <cohort/ops.h>

/* An array of the reference: row-major doubles. */
typedef struct t_array {
    ch_shape shape;
    double  *v; /* memory of count elements; t_out allocates that of an output */
} t_array;

/* Sets the shape of an output and fills it with zeros. */
void t_out(t_array *out, ch_shape shape);

/* For `check`: ends the test unless the condition holds. The message names op, sample and
 * dtype. */
void t_expect(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The values of an input, from a fixed seed. */
typedef enum t_fill {
    T_UNIT,     /* uniform in (-1, 1), nothing within 0.05 of 0 or of a half */
    T_POSITIVE, /* uniform in (0.2, 2) */
    T_DISTINCT, /* a permutation of well separated values: for max, sort, top_k */
    T_IDS,      /* integers in [0, limit) */
    T_BOOL,     /* 0 or 1; a bool in every dtype of the sample */
    T_SMALL,    /* integers in [-4, 4] except 0: exact in every dtype; absolute values for u8 */
    T_SORTED,   /* nondecreasing integers in [0, limit): segment ids */
    T_SPLITS    /* the same, from 0 on: row splits */
} t_fill;

typedef struct t_input {
    ch_shape shape;
    t_fill   fill;
    int      limit;     /* of T_IDS and T_SORTED */
    bool     is_ids;    /* i64 (then i32) in every dtype of the sample */
    bool     is_static; /* axis 0 is a number; recorded as a variable, like weights */
} t_input;

enum {
    T_FLOATS = 1 << CH_F32 | 1 << CH_F64 | 1 << CH_BF16 | 1 << CH_F16,
    T_INTS = 1 << CH_I8 | 1 << CH_I32 | 1 << CH_I64 | 1 << CH_U8,
    T_WIDE = 1 << CH_F32 | 1 << CH_F64
};

typedef struct t_sample {
    const char *op;     /* of the table: "matmul" */
    const char *name;   /* name of the case: "transposed, broadcast batch" */
    unsigned    dtypes; /* bits of ch_dtype; the sample runs with float inputs in each */
    int         n_in;
    t_input     in[8];
    int         n_out; /* 0 means 1 */
    /* Records the op and sets the outputs. */
    void (*record)(ch_step *s, ch_node *const *in, ch_node **out);
    /* Computes the result independently. NULL if `check` checks the result instead. */
    void (*reference)(const t_array *in, t_array *out);
    void (*check)(const t_array *in, const t_array *out);
    unsigned flags;     /* T_NO_GRAD and the like */
    double   tolerance; /* relative, in f32; 0 means 1e-5. f64 gets a millionth of it, the
                           16-bit floats their own precision */
} t_sample;

enum {
    T_NO_GRAD = 1 << 0,   /* has no gradient, or is not smooth at the inputs */
    T_GRAD_ONCE = 1 << 1, /* the gradient has no gradient */
    T_RANDOM = 1 << 2,    /* differs with the step, the seed and the replica */
    T_NO_ENCODE = 1 << 3,
    T_ALLOCATES = 1 << 4 /* allocates in every run: host calls */
};

/* A call that must fail while it is recorded or run, with these words in its message. */
typedef struct t_refusal {
    const char *op;
    const char *name;
    int         n_in;
    t_input     in[8];
    ch_dtype    dtype; /* of the inputs that are not ids */
    void (*record)(ch_step *s, ch_node *const *in, ch_node **out);
    ch_status   code;
    const char *words[3];
} t_refusal;

/* The file of each family defines these two tables, and test_ops.c lists them. Both end with a
 * row whose op is NULL. */
typedef struct t_family {
    const char      *name;
    const t_sample  *samples;
    const t_refusal *refusals;
} t_family;

extern const t_family t_source, t_elementwise, t_reduce, t_matmul, t_nn, t_array_ops, t_index,
    t_random, t_effect, t_control, t_apply;

#endif
