/* Code in an anonymous mapping, as a compiler in the process makes it, with a frame pointer and no description. */
#include "spot.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static NOINLINE void
callback(void)
{
	spot();
	STAY();
}

static NOINLINE void
caller(void *code)
{
	void		(*generated) (void (*) (void)) = (void (*) (void (*) (void))) (uintptr_t) code;

	generated(callback);
	STAY();
}

int
main(void)
{
	/* push %rbp; mov %rsp,%rbp; sub $32,%rsp; call *%rdi; leave; ret */
	static const unsigned char text[] = {
		0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0xff, 0xd7, 0xc9, 0xc3
	};
	void	   *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (code == MAP_FAILED)
		abort();
	memcpy(code, text, sizeof(text));
	if (mprotect(code, 4096, PROT_READ | PROT_EXEC) != 0)
		abort();
	caller(code);
	STAY();
	return 0;
}
