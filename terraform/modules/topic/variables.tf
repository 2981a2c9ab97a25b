variable "project" {
  type        = string
  description = "Id of the project."
}

variable "name" {
  type        = string
  description = "Name of the topic and of its subscription."

  validation {
    condition     = can(regex("^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$", var.name))
    error_message = "A topic's name has 3 to 255 characters and begins with a letter."
  }
}

variable "existing_topic" {
  type        = string
  default     = null
  description = "Topic of somebody else, as projects/P/topics/T."
}

variable "of_another" {
  type        = bool
  default     = false
  description = "Makes the subscription alone, to existing_topic."
}

variable "ack_deadline" {
  type        = number
  default     = 60
  description = "Seconds until an unacknowledged message is delivered again."

  validation {
    condition     = var.ack_deadline >= 10 && var.ack_deadline <= 600
    error_message = "The acknowledgement deadline is 10 to 600 seconds."
  }
}

variable "retention" {
  type        = string
  default     = "604800s"
  description = "How long an unacknowledged message is kept, in seconds: 600s to 604800s."
}

variable "dead_letters" {
  type = object({
    topic = string
  })
  default     = null
  description = "Topic that messages go to which are delivered too often, as projects/P/topics/T."
}

variable "max_delivery_attempts" {
  type        = number
  default     = 20
  description = "Deliveries, as well as Pub/Sub counts them, before a message is a dead letter. What a full receiver gives back counts too."

  validation {
    condition     = var.max_delivery_attempts >= 5 && var.max_delivery_attempts <= 100
    error_message = "Pub/Sub takes 5 to 100 delivery attempts."
  }
}

variable "pubsub_agent" {
  type        = string
  description = "Pub/Sub's own service agent, as an IAM member."
}

variable "push" {
  type = object({
    endpoint = string
    account  = string
    audience = string
  })
  default     = null
  description = "Where messages are pushed, the service account that the push is made as, and the audience of its token; pulled when absent."
}

variable "publishers" {
  type        = map(string)
  default     = {}
  description = "IAM members that publish, by a name for the plan."
}

variable "subscribers" {
  type        = map(string)
  default     = {}
  description = "IAM members that pull, by a name for the plan."
}
