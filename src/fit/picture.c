/* fit/picture.c -- small pictures of tensors and histories.   SPDX-License-Identifier: Apache-2.0 */
#include "cohort/picture.h"

#include <string.h>

#include "base/mem.h"
#include "fit/history.h"
#include "fit/plot.h"
#include "tensor/tensor.h"

int ch_plot(int n, const double *y, int columns, int rows, char *text, size_t size)
{
    return ch__plot(y != NULL ? n : 0, y, columns, rows, text, size);
}

/* The sizes that are not 1; false: they are not two. */
static bool sides_of(const ch_tensor *t, int *height, int *width)
{
    ch_shape s = ch_tensor_shape(t);
    int64_t  side[2] = {1, 1};
    int      n = 0;

    for (int i = 0; i < s.rank; i++)
        if (s.dim[i] != 1) {
            if (n == 2)
                return false;
            side[n++] = s.dim[i];
        }
    *height = (int)side[0];
    *width = (int)side[1];
    return n == 2 && side[0] > 0 && side[1] > 0 && side[0] <= 1024 && side[1] <= 1024;
}

int ch_picture(const ch_tensor *image, char *text, size_t size)
{
    int    height, width, n;
    float *pixel;

    if (size > 0)
        *text = '\0';
    if (image == NULL || ch_tensor_dtype(image) == CH_STR || !ch_tensor_is_contiguous(image) ||
        !sides_of(image, &height, &width))
        return 0;
    pixel = ch__malloc((size_t)height * (size_t)width * sizeof(float));
    if (pixel == NULL)
        return 0;
    for (int i = 0; i < height * width; i++)
        pixel[i] = (float)ch__load(ch_tensor_dtype(image),
                                   (const char *)ch_tensor_data(image) +
                                       (size_t)i * ch_dtype_bytes(ch_tensor_dtype(image)));
    n = ch__picture(height, width, pixel, text, size);
    ch__free(pixel);
    return n;
}

int ch_history_plot(const ch_history *h, const char *name, int columns, int rows, char *text,
                    size_t size)
{
    int     n = ch_history_epochs(h), result;
    double *y;

    if (h != NULL && name != NULL && strcmp(name, "loss") == 0 && h->n_curve > 1)
        return ch__plot(h->n_curve, h->curve, columns, rows, text, size);
    y = ch__malloc(((size_t)n + 1) * sizeof(double));
    for (int i = 0; y != NULL && i < n; i++)
        y[i] = ch_history_at(h, name, i);
    result = ch__plot(y != NULL ? n : 0, y, columns, rows, text, size);
    ch__free(y);
    return result;
}
