package queue

// DatabaseSQL lists the databases.
const DatabaseSQL = databaseSQL
