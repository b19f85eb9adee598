// Calls goWait of the library that its argument names, or, with another argument, goSpin all the time.
#include <dlfcn.h>
#include <stdio.h>

__attribute__((noinline)) static int enter(int (*wait)(int)) { volatile int r = wait(3); return r; }

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
	int (*wait)(int) = library ? (int (*)(int)) dlsym(library, argc > 2 ? "goSpin" : "goWait") : 0;
	if (!wait) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	do
		enter(wait);
	while (argc > 2);
	return 0;
}
