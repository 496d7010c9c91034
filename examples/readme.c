/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cohort/cohort.h"

int main(void)
{
    const float data[] = {1, 2, 3, 4, 5, 6};
    ch_tensor  *x = NULL, *row = NULL;
    char        text[256];
    ch_status   rc;

    if ((rc = ch_tensor_copy_of(CH_F32, ch_shape_of(2, 3), data, &x)) ||
        (rc = ch_tensor_rows(x, 1, 2, &row)))
        goto done;
    ch_tensor_print(row, text, sizeof(text));
    printf("%s on %s\n", text, ch_device_name(ch_tensor_device(row)));

done:
    if (rc != CH_OK)
        fprintf(stderr, "%s: %s\n", ch_status_name(rc), ch_error_message());
    ch_tensor_unref(row);
    ch_tensor_unref(x);
    return rc != CH_OK;
}
