/* examples/clothes.h -- loads Fashion-MNIST, or draws synthetic striped images; prints images.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_CLOTHES_H
#define EXAMPLES_CLOTHES_H

#include <unistd.h>

#include "example.h"
#include "picture.h"

/* EDGE: columns cut off on each side of a printed image, so that three fit in 80 columns. */
enum { SIDE = 28, CLASSES = 10, SHOWN = 3, EDGE = 1, WIDE = SIDE - 2 * EDGE, DRAWN = 4000 };

#define FOLDER "/usr/share/datasets/fashion-mnist"

static const char *const clothes[CLASSES] = {"T-shirt", "trousers", "pullover", "dress",
                                             "coat",    "sandal",   "shirt",    "sneaker",
                                             "bag",     "boot"};

/* Images (rows, 28, 28, 1) and labels (rows), both u8. */
typedef struct pictures {
    ch_tensor *t[2];
    bool       is_drawn; /* synthetic striped images */
} pictures;

/* Draws synthetic images of stripes. The slope of the stripes is the class. */
static inline void draw(pictures *p)
{
    p->is_drawn = true;
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

/* Loads a part of the data set: "train" or "t10k". Draws images if it is not readable. */
static inline void load(const char *folder, const char *name, pictures *p)
{
    char       path[2][512];
    ch_tensor *flat = NULL;

    *p = (pictures){.is_drawn = false};
    for (int i = 0; i < 2; i++)
        snprintf(path[i], sizeof(path[i]), "%s/%s-%s-ubyte.gz", folder, name,
                 i == 0 ? "images-idx3" : "labels-idx1");
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

/* Returns the name of the class with the largest of CLASSES logits. */
static inline const char *name_of(const pictures *p, const float *logit)
{
    static char text[32];
    int         best = 0;

    for (int k = 1; k < CLASSES; k++)
        best = logit[k] > logit[best] ? k : best;
    snprintf(text, sizeof(text), "stripes, kind %d", best);
    return p->is_drawn ? text : clothes[best];
}

/* Prints the first images side by side, and below each the class that the model predicts. */
static inline void show(const pictures *p, const ch_tensor *guess)
{
    static uint8_t all[SIDE][SHOWN * WIDE];
    const uint8_t *pixel = ch_tensor_data(p->t[0]);
    const float   *logit = ch_tensor_data(guess);

    for (int i = 0; i < SHOWN; i++)
        for (int row = 0; row < SIDE; row++)
            memcpy(&all[row][i * WIDE], pixel + (i * SIDE + row) * SIDE + EDGE, WIDE);
    print_picture(stdout, SIDE, SHOWN * WIDE, all[0]);
    for (int i = 0; i < SHOWN; i++)
        printf("%*s%-*s", WIDE / 4, "", i < SHOWN - 1 ? WIDE - WIDE / 4 : 0,
               name_of(p, logit + i * CLASSES));
    puts("");
}

static inline void drop(pictures *p)
{
    ch_tensor_unref(p->t[0]);
    ch_tensor_unref(p->t[1]);
}

#endif
