/* Continues a text with the exported GPT: no Python, no LLVM.

       cc -O2 -I out generate.c out/libgpt.so -Wl,-rpath,out -o out/generate
       out/generate "Simple is " 50

   The library keeps the keys and values of what it has seen, so each call takes one token.
   examples/generate.py writes the library and its header, and runs this. */
#include <stdio.h>
#include <stdlib.h>

#include "libgpt.h"

static float logits[JG_GPT_OUTPUT0_SIZE];

/* Writes a token and gives it to the model. */
static void say(jg_gpt *model, int64_t token) {
    putchar((int)token);
    if (jg_gpt_call(model, &token, logits) != JG_OK) {
        fprintf(stderr, "\n%s\n", jg_gpt_last_error(model));
        exit(1);
    }
}

static int64_t likeliest(void) {
    int64_t best = 0;
    for (int i = 1; i < JG_GPT_OUTPUT0_SIZE; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

int main(int argc, char **argv) {
    if (argc != 3 || !argv[1][0]) {
        fprintf(stderr, "usage: %s PROMPT COUNT\n", argv[0]);
        return 2;
    }
    jg_gpt *model = jg_gpt_create(1);
    if (!model) {
        fprintf(stderr, "%s\n", jg_gpt_status());
        return 1;
    }
    for (const char *at = argv[1]; *at; at++) say(model, *at);
    for (int left = atoi(argv[2]); left > 0; left--) say(model, likeliest());
    jg_gpt_destroy(model);
    return 0;
}
