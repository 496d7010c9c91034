// test/tools/use.cc -- a C++ program that uses the installed library.
// SPDX-License-Identifier: Apache-2.0
#include <cohort/cohort.h>

int main()
{
    ch_tensor *x = nullptr;

    if (ch_tensor_new(CH_F32, ch_shape_of(2, 3), &x) != CH_OK)
        return 1;
    const bool is_right = ch_tensor_count(x) == 6;
    ch_tensor_unref(x);
    return is_right ? 0 : 1;
}
