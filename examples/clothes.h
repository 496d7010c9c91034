/* examples/clothes.h -- Fashion-MNIST, or what stands in for it; and a look at it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_CLOTHES_H
#define EXAMPLES_CLOTHES_H

#include <unistd.h>

#include "example.h"

enum { SIDE = 28, CLASSES = 10, SHOWN = 3, DRAWN = 4000 };

static const char *const clothes[CLASSES] = {"T-shirt", "trousers", "pullover", "dress",
                                             "coat",    "sandal",   "shirt",    "sneaker",
                                             "bag",     "boot"};

/* Images (rows, 28, 28, 1) of bytes, and their labels. */
typedef struct pictures {
    ch_tensor *t[2];
} pictures;

/* Stripes: how steep they are is the class. */
static inline void draw(pictures *p)
{
    must(ch_tensor_new(CH_U8, ch_shape_of(DRAWN, SIDE, SIDE, 1), &p->t[0]));
    must(ch_tensor_new(CH_U8, ch_shape_of(DRAWN), &p->t[1]));
    uint8_t *x = ch_tensor_data_mut(p->t[0]), *label = ch_tensor_data_mut(p->t[1]);
    for (int i = 0; i < DRAWN * SIDE * SIDE; i++) {
        int row = i / SIDE % SIDE, n = i / (SIDE * SIDE), steep = n % CLASSES;

        label[n] = (uint8_t)steep;
        x[i] =
            (uint8_t)((row * steep / 3 + i % SIDE + n / CLASSES) % 9 < 3 ? 200 : rand() % 90);
    }
}

/* "train" or "t10k". */
static inline void load(const char *name, pictures *p)
{
    char       path[2][100];
    ch_tensor *flat = NULL;

    for (int i = 0; i < 2; i++)
        snprintf(path[i], sizeof(path[i]), "/usr/share/datasets/fashion-mnist/%s-%s-ubyte.gz",
                 name, i == 0 ? "images-idx3" : "labels-idx1");
    if (access(path[0], R_OK) != 0 || access(path[1], R_OK) != 0) {
        draw(p);
        return;
    }
    must(ch_idx_load(path[0], NULL, &flat));
    must(ch_tensor_reshape(flat, ch_shape_of(ch_tensor_shape(flat).dim[0], SIDE, SIDE, 1),
                           &p->t[0]));
    must(ch_idx_load(path[1], NULL, &p->t[1]));
    ch_tensor_unref(flat);
}

/* The first pictures side by side, and what the model takes them for. */
static inline void show(const pictures *p, const ch_tensor *guess)
{
    static uint8_t all[SIDE][SHOWN * SIDE];
    static char    text[16384];
    ch_tensor     *t = NULL;

    for (int i = 0; i < SIDE * SIDE * SHOWN; i++)
        all[i / SIDE % SIDE][i / SIDE / SIDE * SIDE + i % SIDE] =
            ((const uint8_t *)ch_tensor_data(p->t[0]))[i];
    must(ch_tensor_copy_of(CH_U8, ch_shape_of(SIDE, SHOWN * SIDE), all, &t));
    ch_picture(t, text, sizeof(text));
    fputs(text, stdout);
    for (int i = 0; i < SHOWN; i++) {
        const float *z = (const float *)ch_tensor_data(guess) + i * CLASSES;
        int          best = 0;

        for (int k = 1; k < CLASSES; k++)
            best = z[k] > z[best] ? k : best;
        printf("%*s%-*s", SIDE / 3, "", SIDE - SIDE / 3, clothes[best]);
    }
    ch_tensor_unref(t);
}

static inline void drop(pictures *p)
{
    ch_tensor_unref(p->t[0]);
    ch_tensor_unref(p->t[1]);
}

#endif
