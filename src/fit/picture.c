/* fit/picture.c -- pictures of tensors and histories (cohort/picture.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/picture.h"

#include <string.h>

#include "base/mem.h"
#include "fit/history.h"
#include "fit/plot.h"
#include "tensor/print.h"

int ch_plot(int n, const double *y, int columns, int rows, char *text, size_t size)
{
    return ch__plot(y != NULL ? n : 0, y, columns, rows, text, size);
}

/* Sets height and width to the two sizes that are not 1. Returns false if there are not exactly
 * two, or if they are 0 or above 1024. */
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

    if (text == NULL)
        size = 0;
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

/* ---- histories ---- */

static bool has_name(const ch_history *h, const char *name)
{
    for (int i = 0; i < ch_history_count(h); i++)
        if (name != NULL && strcmp(ch_history_name(h, i), name) == 0)
            return true;
    return false;
}

/* Prints a message with the names of the logs, because an empty plot would look as if there
 * were no numbers. */
static int print_names(const ch_history *h, const char *name, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    ch__text_add(&o, "no epoch has a log named \"%.60s\"; there %s", name != NULL ? name : "",
                 ch_history_count(h) == 1 ? "is" : "are");
    for (int i = 0; i < ch_history_count(h); i++)
        ch__text_add(&o, "%s %.60s", i > 0 ? "," : "", ch_history_name(h, i));
    ch__text_add(&o, "\n");
    return ch__text_length(&o);
}

/* Plots the curve of the loss over the steps. While the training runs the number of steps is
 * not known, so the axis counts the points. */
static int plot_curve(const ch_history *h, int columns, int rows, char *text, size_t size)
{
    ch_plot_axis axis = {"step", 1, h->time.steps};

    if (axis.last < h->n_curve) /* the training is still running */
        axis = (ch_plot_axis){NULL, 1, h->n_curve};
    return ch__plot_over(&axis, h->n_curve, h->curve, columns, rows, text, size);
}

/* Counts epochs from 1, as the progress line does. */
int ch_history_plot(const ch_history *h, const char *name, int columns, int rows, char *text,
                    size_t size)
{
    int          n = ch_history_epochs(h), result;
    double      *y;
    ch_plot_axis axis = {"epoch", n > 0, n};

    if (h != NULL && name != NULL && strcmp(name, "loss") == 0 && h->n_curve > 1)
        return plot_curve(h, columns, rows, text, size);
    if (ch_history_count(h) > 0 && !has_name(h, name))
        return print_names(h, name, text, size);
    y = ch__malloc(((size_t)n + 1) * sizeof(double));
    for (int i = 0; y != NULL && i < n; i++)
        y[i] = ch_history_at(h, name, i);
    result = ch__plot_over(&axis, y != NULL ? n : 0, y, columns, rows, text, size);
    ch__free(y);
    return result;
}
