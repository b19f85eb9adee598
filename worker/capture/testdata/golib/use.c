// Calls goWait of the library that its argument names.
#include <dlfcn.h>
#include <stdio.h>

__attribute__((noinline)) static int enter(int (*wait)(int)) { volatile int r = wait(3); return r; }

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
	int (*wait)(int) = library ? (int (*)(int)) dlsym(library, "goWait") : 0;
	if (!wait) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return enter(wait);
}
