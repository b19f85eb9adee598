package queue

// DatabaseSQL lists the databases.
var DatabaseSQL = databaseSQL
