/* bench/mlp.c -- an SGD step of a 784-512-512-10 perceptron on 128 rows, on two cores.
 *
 * The limit: its eight products, by OpenBLAS.   SPDX-License-Identifier: Apache-2.0 */
#include "training.h"

enum { ROWS = 128, WIDTHS = 4 };

static const int width[WIDTHS] = {784, 512, 512, 10};

typedef struct products {
    float *x[WIDTHS], *w[WIDTHS];
} products;

static float *numbers(int n)
{
    float *x = malloc((size_t)n * sizeof(*x));

    if (x == NULL)
        exit(1);
    for (int i = 0; i < n; i++)
        x[i] = (float)(i % 7) - 3;
    return x;
}

static void product(bool ta, bool tb, int m, int n, int k, const float *a, const float *b,
                    float *c)
{
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                m, n, k, 1, a, ta ? m : k, b, tb ? k : n, 0, c, n);
}

static void multiply_layers(void *arg, int64_t n)
{
    products *p = arg;

    openblas_set_num_threads(CORES);
    while (n-- > 0) {
        for (int i = 1; i < WIDTHS; i++)
            product(false, false, ROWS, width[i], width[i - 1], p->x[i - 1], p->w[i], p->x[i]);
        for (int i = WIDTHS - 1; i > 0; i--) {
            product(true, false, width[i - 1], width[i], ROWS, p->x[i - 1], p->x[i], p->w[i]);
            if (i > 1)
                product(false, true, ROWS, width[i - 1], width[i], p->x[i], p->w[i],
                        p->x[i - 1]);
        }
    }
}

int main(int argc, char **argv)
{
    bench   *b = bench_open("mlp", argc, argv);
    training t = {0};
    products p;

    for (int i = 0; i < WIDTHS; i++) {
        p.x[i] = numbers(ROWS * width[i]);
        p.w[i] = numbers(i > 0 ? width[i - 1] * width[i] : 1);
    }
    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = CORES}));
    must(ch_model_new(
        NULL, perceptron(),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 784)}}},
        &t.model));
    must(ch_optimizer_sgd(0.01, NULL, NULL, &t.opt));
    must(ch_function_new("mlp", classify, &t, &t.step));
    fill_model(t.model);
    take_batch(&t, noise(BATCH_X, ch_shape_of(ROWS, 784), 0, 1),
               labels(BATCH_Y, ch_shape_of(ROWS), 10));
    bench_run(b, &(bench_case){.name = "784-512-512-10, 128 rows, SGD",
                               .unit = "ms/step",
                               .scale = 1e3,
                               .ours = {.run = run_training, .arg = &t},
                               .peer = TORCH("mlp"),
                               .limit = {.run = multiply_layers, .arg = &p},
                               .rest = true,
                               .check = learns,
                               .result = fifth_loss,
                               .tolerance = 1e-5});
    drop_training(&t);
    for (int i = 0; i < WIDTHS; i++) {
        free(p.x[i]);
        free(p.w[i]);
    }
    return bench_close(b);
}
