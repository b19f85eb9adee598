// reload.c: loads the library that its argument names, has it call back into a read of standard input, and, for every
// byte that comes, unloads it and loads it again. The library may have become another one meanwhile. It prints "." when
// it is about to read.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void
spot(void)
{
	char		byte;

	if (write(1, ".", 1) != 1 || read(0, &byte, 1) != 1)
		exit(1);
}

int
main(int argc, char **argv)
{
	for (int i = 1; argc == 2 || i < argc; i++)
	{
		void	   *library = dlopen(argv[argc == 2 ? 1 : i], RTLD_NOW);
		void		(*enter) (void (*) (void)) = NULL;

		if (library != NULL)
			*(void **) &enter = dlsym(library, "enter");
		if (enter == NULL)
			return 2;
		enter(spot);
		dlclose(library);
	}
	return 0;
}
