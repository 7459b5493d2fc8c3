/* Runs the exported digit classifier from C: no Python, no LLVM.

       cc -O2 -I out classify.c out/libdigits.so -Wl,-rpath,out -o out/classify
       out/classify out/images.f32

   images.f32 holds 8 x 8 images, float32 in [0, 1], one after another. Prints one digit a line.
   examples/digits.py writes the library, its header and the images, and runs this. */
#include <stdio.h>

#include "libdigits.h"

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s IMAGES.f32\n", argv[0]);
        return 2;
    }
    FILE *file = fopen(argv[1], "rb");
    if (!file) {
        perror(argv[1]);
        return 1;
    }
    jg_digits *model = jg_digits_create(1);
    if (!model) {
        fprintf(stderr, "%s\n", jg_digits_status());
        return 1;
    }
    float image[JG_DIGITS_INPUT0_SIZE], scores[JG_DIGITS_OUTPUT0_SIZE];
    while (fread(image, sizeof image, 1, file) == 1) {
        if (jg_digits_call(model, image, scores) != JG_OK) {
            fprintf(stderr, "%s\n", jg_digits_last_error(model));
            return 1;
        }
        int best = 0;
        for (int digit = 1; digit < JG_DIGITS_OUTPUT0_SIZE; digit++)
            if (scores[digit] > scores[best]) best = digit;
        printf("%d\n", best);
    }
    jg_digits_destroy(model);
    fclose(file);
    return 0;
}
