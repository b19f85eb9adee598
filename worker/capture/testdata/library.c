// library.c: what reload.c loads; NAME is the function to find in its stack.
#define JOIN(a, b) a##b
#define CALL(name) JOIN(name, _inner)

static int	calls;

int __attribute__((noinline)) CALL(NAME) (void (*spot) (void));
int __attribute__((noinline))
CALL(NAME) (void (*spot) (void))
{
	spot();
	return ++calls;
}

void
enter(void (*spot) (void))
{
	CALL(NAME) (spot);
	calls++;
}
